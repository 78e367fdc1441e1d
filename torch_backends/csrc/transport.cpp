#include "transport.h"

namespace torchfleet {

char* bytes_of(const at::Tensor& tensor) {
  return static_cast<char*>(tensor.data_ptr());
}

int64_t nbytes_of(const at::Tensor& tensor) {
  return static_cast<int64_t>(tensor.nbytes());
}

bool Transport::try_begin_shared(Signature own, const at::Tensor& tensor) const {
  if (!shared_ || !tensor.is_cpu()) {
    return false;
  }
  shared_->begin(own);
  return true;
}

void Transport::broadcast(const at::Tensor& tensor, int root) const {
  const Signature own(Signature::kBroadcast, tensor.scalar_type(), tensor.numel(), root);
  if (try_begin_shared(own, tensor)) {
    shared_->broadcast(bytes_of(tensor), nbytes_of(tensor), root);
  } else {
    broadcast_impl(own, tensor, root);
  }
}

void Transport::all_reduce(at::Tensor& tensor, const c10d::ReduceOp& op) const {
  const Reduction how = reduction(tensor.scalar_type(), op);
  const Signature own(Signature::kAllReduce, tensor.scalar_type(), tensor.numel(), -1, op.op_);
  if (try_begin_shared(own, tensor)) {
    shared_->all_reduce(elements_of(tensor, how), how);
  } else {
    all_reduce_impl(own, tensor, how);
  }
  divide_after(tensor, op, size_);
}

void Transport::all_reduce_in_two_levels(Signature own, const Elements& all, const Reduction& how, bool by_all,
                                         const std::function<void(const Elements&)>& between) const {
  if (!node_) {
    between(all);
    return;
  }
  node_->begin(own);
  if (!by_all) {
    node_->reduce(all, how, 0);
    if (local_rank_ == 0) {
      between(all);
    }
    node_->broadcast(all.data, all.bytes(), 0);
    return;
  }
  // The last part has what is left over.
  const int last = local_size_ - 1;
  const int64_t each = all.count / local_size_, left = all.count % local_size_;
  const Elements mine = all.part(local_rank_ * each, each), rest = all.part(local_size_ * each, left);
  node_->reduce_scatter(all.data, mine, how);
  if (left > 0) {
    node_->reduce(rest, how, last);
  }
  between(local_rank_ == last ? mine.part(0, each + left) : mine);
  node_->all_gather(mine.data, all.data, mine.bytes());
  if (left > 0) {
    node_->broadcast(rest.data, rest.bytes(), last);
  }
}

void Transport::reduce(at::Tensor& tensor, const c10d::ReduceOp& op, int root) const {
  const Reduction how = reduction(tensor.scalar_type(), op);
  const Signature own(Signature::kReduce, tensor.scalar_type(), tensor.numel(), root, op.op_);
  if (try_begin_shared(own, tensor)) {
    shared_->reduce(elements_of(tensor, how), how, root);
  } else {
    reduce_impl(own, tensor, how, root);
  }
  if (rank_ == root) {
    divide_after(tensor, op, size_);
  }
}

void Transport::all_gather(const at::Tensor& input, const at::Tensor& output) const {
  const Signature own(Signature::kAllGather, input.scalar_type(), input.numel());
  if (try_begin_shared(own, input)) {
    shared_->all_gather(bytes_of(input), bytes_of(output), nbytes_of(input));
  } else {
    all_gather_impl(own, input, output);
  }
}

void Transport::reduce_scatter(const at::Tensor& input, at::Tensor& output, const c10d::ReduceOp& op) const {
  const Reduction how = reduction(output.scalar_type(), op);
  const Signature own(Signature::kReduceScatter, output.scalar_type(), output.numel(), -1, op.op_);
  if (try_begin_shared(own, input)) {
    shared_->reduce_scatter(bytes_of(input), elements_of(output, how), how);
  } else {
    reduce_scatter_impl(own, input, output, how);
  }
  divide_after(output, op, size_);
}

void Transport::barrier() const {
  if (shared_) {
    shared_->begin(Signature::barrier());
    shared_->barrier();
  } else {
    barrier_impl();
  }
}

void Transport::fail(const std::string& why) const {
  for (const auto& memory : {shared_, node_}) {
    if (memory) {
      memory->fail(why);
    }
  }
}

void Transport::leave() const {
  for (const auto& memory : {shared_, node_}) {
    if (memory) {
      memory->leave();
    }
  }
}

std::vector<int> Transport::missing() const {
  const auto& memory = shared_ ? shared_ : node_;
  return memory ? memory->missing() : std::vector<int>();
}

}  // namespace torchfleet
