// Returns {faults: [text], texts: number of texts that were judged}: what a reader of this page would stumble over, from
// what the browser drew. An expression that tests/pictures/judge.py gives to the browser.
(() => {
  const faults = [];
  const say = (what, text) => faults.push(`${what}: ${String(text).replace(/\s+/g, " ").trim().slice(0, 120)}`);
  const root = document.documentElement;
  const seen = element => element.checkVisibility({ checkOpacity: true, checkVisibilityCSS: true }) &&
    !element.closest(".unseen, title, desc, defs, style");

  // Every visible text with the box of each of its lines.
  const texts = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const holder = node.parentElement;
    if (!node.data.trim() || !seen(holder)) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    const boxes = [...range.getClientRects()].filter(box => box.width > 0.5 && box.height > 0.5);
    texts.push({ node, holder, boxes, style: getComputedStyle(holder) });
  }

  // 1. Nothing is wider than the page.
  if (root.scrollWidth > root.clientWidth) {
    const wide = [...document.body.querySelectorAll("*")].find(e => e.getBoundingClientRect().right > root.clientWidth + 1);
    say(`the page is ${root.scrollWidth} pixels wide on a screen of ${root.clientWidth}`, wide ? wide.outerHTML : "");
  }

  // 2. No text is cut off: by the side of the page, by what clips it, or by the picture that it is in. A box that one can
  // scroll is for phones only.
  const narrow = root.clientWidth < 500;
  for (const { node, holder, boxes } of texts) {
    const fits = (box, frame) => box.left >= frame.left - 1 && box.right <= frame.right + 1;
    const within = (box, frame) => fits(box, frame) && box.top >= frame.top - 2 && box.bottom <= frame.bottom + 2;
    let scrolled = false;
    for (let up = holder; up && up !== document.body; up = up.parentElement) {
      const style = getComputedStyle(up);
      const inPicture = up instanceof SVGSVGElement;
      if (style.overflowX === "visible" && !inPicture) continue;
      const frame = up.getBoundingClientRect();
      const scrolls = !inPicture && ["auto", "scroll"].includes(style.overflowX);
      if (scrolls && narrow) scrolled = true;
      else if (!boxes.every(box => (scrolls ? fits(box, frame) : within(box, frame)))) say("text is cut off", node.data);
    }
    if (!scrolled && !boxes.every(box => fits(box, { left: 0, right: root.clientWidth }))) {
      say("text is beside the page", node.data);
    }
  }

  // 3. No text lies on another one. Line boxes are higher than letters: a fifth of each side does not count.
  const flat = texts.flatMap(({ node, boxes }) => boxes.map(box => ({
    node, left: box.left + 1, right: box.right - 1, top: box.top + box.height * 0.2, bottom: box.bottom - box.height * 0.2,
  }))).sort((a, b) => a.top - b.top);
  flat.forEach((one, place) => {
    for (let next = place + 1; next < flat.length && flat[next].top < one.bottom; next++) {
      const other = flat[next];
      if (other.node !== one.node && other.left < one.right && one.left < other.right) {
        say("two texts overlap", `${one.node.data} | ${other.node.data}`);
      }
    }
  });

  // 4. No curve goes through a label of its picture.
  for (const figure of document.querySelectorAll("figure")) {
    const labels = [...figure.querySelectorAll("text")].filter(seen).map(text => [text, text.getBoundingClientRect()]);
    for (const curve of figure.querySelectorAll("path.line, path.band, path.faint")) {
      const matrix = curve.getScreenCTM();
      const length = curve.getTotalLength();
      for (let step = 0; step <= 400; step++) {
        const point = curve.getPointAtLength(length * step / 400).matrixTransform(matrix);
        const hit = labels.find(([, box]) => point.x > box.left + 1 && point.x < box.right - 1 &&
          point.y > box.top + 3 && point.y < box.bottom - 3);
        if (hit) { say("a curve goes through a label", hit[0].textContent); break; }
      }
    }
  }

  // 5. Text stands out from what is behind it: WCAG 2.1, success criterion 1.4.3, level AA, for all sizes.
  const parse = color => {
    const found = color.match(/rgba?\(([^)]+)\)/);
    return found ? found[1].split(/[ ,/]+/).map(Number).concat(1).slice(0, 4) : null;
  };
  const over = (top, below) => [0, 1, 2].map(at => top[at] * top[3] + below[at] * (1 - top[3])).concat(1);
  const bright = color => {
    const [r, g, b] = color.map(part => part / 255).map(part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  for (const { node, holder, style } of texts) {
    const ink = parse(holder instanceof SVGElement ? style.fill : style.color);
    const behind = [];
    let alpha = 1;
    for (let up = holder; up; up = up.parentElement) {
      const above = getComputedStyle(up);
      alpha *= Number(above.opacity);
      const paint = parse(above.backgroundColor);
      if (paint && paint[3]) behind.unshift(paint);
    }
    const paper = behind.reduce((below, top) => over(top, below), [255, 255, 255, 1]);
    if (!ink) { say("text has no plain color", node.data); continue; }
    const [light, dark] = [bright(over([...ink.slice(0, 3), ink[3] * alpha], paper)), bright(paper)].sort((a, b) => b - a);
    const contrast = (light + 0.05) / (dark + 0.05);
    if (contrast < 4.5) say(`text has a contrast of ${contrast.toFixed(2)}`, node.data);
  }

  // 6. Letters are large enough to be read: 10 pixels, and on a wall as many as a hundredth of an inch at arm's length.
  const least = root.clientWidth >= 3400 ? 20 : root.clientWidth >= 2200 ? 14 : 10;
  for (const { node, holder, boxes } of texts) {
    if (boxes.length && boxes[0].height < least) say(`text is ${boxes[0].height.toFixed(1)} pixels high`, node.data);
  }

  // 7. No empty box: a section that says nothing but its title, a column without a value, a picture without a shape.
  for (const section of document.querySelectorAll("section")) {
    const title = section.querySelector("h2");
    if (section.innerText.trim() === (title ? title.innerText.trim() : "")) say("a section is empty", title ? title.innerText : "");
  }
  for (const table of document.querySelectorAll(".wide table:not(.heat)")) {
    const heads = [...table.querySelectorAll("thead th")];
    const rows = [...table.querySelectorAll("tbody tr")];
    heads.forEach((head, at) => {
      if (rows.every(row => !row.children[at].textContent.trim())) say("a column is empty", head.textContent);
    });
  }
  for (const picture of document.querySelectorAll("figure svg, .mark svg")) {
    if (!picture.querySelector("path, rect, line, circle, text")) say("a picture is empty", picture.outerHTML);
  }
  return { faults: [...new Set(faults)], texts: texts.length };
})()
