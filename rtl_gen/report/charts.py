"""Charts as inline SVG: colours from the page's style sheet, axes with units, a legend, and the numbers as text for those who can't
see them. Every function returns the text of one <figure>."""

from html import escape
from math import ceil, floor, log10

__all__ = ["bars", "lines", "stacked"]

WIDTH, LEFT, RIGHT, TOP, BOTTOM = 860, 76, 20, 16, 56
COLOURS = 8             #: classes s0..s7 of the style sheet; later series get hatches too


def _num(value):
    if value == 0:
        return "0"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value != int(value) else f"{value:.0f}"


def _ticks(most, wanted=5):
    """Round steps from 0 to at least `most`."""
    step = 10 ** floor(log10(most / wanted)) if most > 0 else 1
    step = next(step * f for f in (1, 2, 5, 10) if step * f * wanted >= most)
    return [step * i for i in range(ceil(most / step - 1e-9) + 1)]


def _style(i):
    return f"s{i % COLOURS}" + (f" h{i // COLOURS}" if i >= COLOURS else "")


def _text(x, y, text, cls="", anchor="start", rotate=None):
    turn = f' transform="rotate({rotate} {x:.1f} {y:.1f})"' if rotate is not None else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{cls}" text-anchor="{anchor}"{turn}>{escape(str(text))}</text>'


def _figure(ident, title, description, height, body, legend, table):
    """`legend`: [(class, name)]; `table`: (heads, rows) with the same numbers."""
    key = '<li><svg width="14" height="14" aria-hidden="true"><rect width="14" height="14" class="%s"/></svg> %s</li>'
    keys = "".join(key % (cls, escape(name)) for cls, name in legend)
    heads, rows = table
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in heads)
    cells = "".join("<tr>" + "".join(f"<td>{escape(str(c))}</td>" for c in row) + "</tr>" for row in rows)
    return f"""<figure id="{ident}">
<figcaption><strong>{escape(title)}</strong> {escape(description)}</figcaption>
<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-labelledby="{ident}-t {ident}-d">
<title id="{ident}-t">{escape(title)}</title><desc id="{ident}-d">{escape(description)}</desc>
{body}
</svg>
<ul class="legend">{keys}</ul>
<details><summary>The numbers</summary><div class="wide"><table><thead><tr>{head}</tr></thead>
<tbody>{cells}</tbody></table></div></details>
</figure>"""


# -- horizontal bars, one row a design -----------------------------------------------------------------


def stacked(ident, title, description, unit, rows):
    """`rows`: [(name, {part: value})]. Parts keep their colour over the rows; the sum stands at the end of the bar."""
    parts = list(dict.fromkeys(part for _, values in rows for part in values))
    parts.sort(key=lambda p: -max(values.get(p, 0) for _, values in rows))
    if len(parts) > 15:         # the smallest ones together
        small = set(parts[14:])
        rest = f"{len(small)} smaller ones"
        rows = [(name, {**{p: v for p, v in values.items() if p not in small}, rest: sum(v for p, v in values.items() if p in small)})
                for name, values in rows]
        parts = parts[:14] + [rest]
    left = 14 + 7.2 * max(len(name) for name, _ in rows)
    step, bar = 44, 26
    height = TOP + step * len(rows) + BOTTOM
    ticks = _ticks(max(sum(values.values()) for _, values in rows) or 1)
    scale = (WIDTH - left - 70) / ticks[-1]
    floor_y = TOP + step * len(rows)
    body = []
    for tick in ticks:
        x = left + tick * scale
        body += [f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{floor_y}" class="grid"/>',
                 _text(x, floor_y + 18, _num(tick), "tick", "middle")]
    body.append(_text(left + (WIDTH - left - 70) / 2, floor_y + 42, unit, "axis", "middle"))
    for i, (name, values) in enumerate(rows):
        y, x = TOP + i * step + (step - bar) / 2, left
        body.append(_text(left - 8, y + bar * 0.68, name, "tick", "end"))
        for k, part in enumerate(parts):
            w = values.get(part, 0) * scale
            if w > 0:
                body.append(f'<rect x="{x:.2f}" y="{y:.1f}" width="{w:.2f}" height="{bar}" class="{_style(k)}">'
                            f"<title>{escape(f'{name}, {part}: {_num(values[part])}')}</title></rect>")
                x += w
        body.append(_text(x + 6, y + bar * 0.68, _num(round(sum(values.values()), 1)), "value"))
    return _figure(ident, title, description, height, "\n".join(body), [(_style(k), part) for k, part in enumerate(parts)],
                   (["", *parts, "all"],
                    [[name, *(_num(values.get(p, 0)) for p in parts), _num(sum(values.values()))] for name, values in rows]))


# -- vertical axes -------------------------------------------------------------------------------------


def _frame(height, ticks, y_of, unit_y, unit_x):
    body = []
    for tick in ticks:
        y = y_of(tick)
        body += [f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" class="grid"/>',
                 _text(LEFT - 8, y + 4, _num(tick), "tick", "end")]
    body += [_text(20, TOP + (height - TOP - BOTTOM) / 2, unit_y, "axis", "middle", rotate=-90),
             _text((LEFT + WIDTH - RIGHT) / 2, height - 8, unit_x, "axis", "middle")]
    return body


def lines(ident, title, description, unit_x, unit_y, series, log_x=True):
    """`series`: [(name, [(x, y)] predicted, [(x, y)] measured)]: a line with small dots, and large rings where something was measured."""
    height = 380
    points = [p for _, line, dots in series for p in [*line, *dots]]
    xs = sorted({x for x, _ in points})
    place = (lambda v: log10(v)) if log_x else (lambda v: v)
    low, high = place(xs[0]), place(xs[-1])
    x_of = lambda v: LEFT + 20 + (place(v) - low) / ((high - low) or 1) * (WIDTH - LEFT - RIGHT - 40)
    ticks = _ticks(max(y for _, y in points) or 1)
    y_of = lambda v: height - BOTTOM - v / ticks[-1] * (height - TOP - BOTTOM)
    body = _frame(height, ticks, y_of, unit_y, unit_x)
    last = -100
    for x in xs:
        if x_of(x) - last > 44:
            body.append(_text(x_of(x), height - BOTTOM + 18, _num(x), "tick", "middle"))
            last = x_of(x)
    for i, (name, line, dots) in enumerate(series):
        path = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in line)
        body.append(f'<polyline points="{path}" class="line l{i % COLOURS} d{i // COLOURS % 3 if i >= COLOURS else 0}"/>')
        body += [f'<circle cx="{x_of(x):.1f}" cy="{y_of(y):.1f}" r="3" class="s{i % COLOURS}"><title>'
                 f'{escape(f"{name}, {_num(x)}: {_num(y)}")}</title></circle>' for x, y in line]
        body += [f'<circle cx="{x_of(x):.1f}" cy="{y_of(y):.1f}" r="7" class="ring l{i % COLOURS}"><title>'
                 f'{escape(f"{name}, measured, {_num(x)}: {_num(y)}")}</title></circle>' for x, y in dots]
    table = [[name, kind, *(_num(dict(p).get(x)) if dict(p).get(x) is not None else "" for x in xs)]
             for name, line, dots in series for kind, p in (("line", line), ("ring", dots)) if p]
    return _figure(ident, title, description, height, "\n".join(body), [(f"s{i % COLOURS}", name) for i, (name, *_) in enumerate(series)],
                   (["", "", *map(_num, xs)], table))


def bars(ident, title, description, unit_x, unit_y, groups, names, log_y=False, limit=None):
    """`groups`: [(label of x, [value of each of `names`])]. With `log_y`, 0 has no bar and 1 a short one. `limit`: the label of the last
    group that is within a limit, behind which a line is drawn."""
    height = 380
    most = max((v for _, values in groups for v in values), default=1) or 1
    if log_y:
        top = ceil(log10(most) + 1e-9) or 1
        ticks = [10 ** i for i in range(top + 1)]
        y_of = lambda v: height - BOTTOM - (0 if v <= 0 else (log10(v) + 0.15) / (top + 0.15)) * (height - TOP - BOTTOM)
    else:
        ticks = _ticks(most)
        y_of = lambda v: height - BOTTOM - v / ticks[-1] * (height - TOP - BOTTOM)
    body = _frame(height, ticks, y_of, unit_y, unit_x)
    slot = (WIDTH - LEFT - RIGHT) / len(groups)
    bar = min(40, slot * 0.8 / len(names))
    for g, (label, values) in enumerate(groups):
        middle = LEFT + slot * (g + 0.5)
        body.append(_text(middle, height - BOTTOM + 18, label, "tick", "middle"))
        if label == limit and g + 1 < len(groups):
            x = middle + slot / 2
            body += [f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{height - BOTTOM}" class="limit"/>',
                     _text(x + 6, TOP + 14, "over the limit", "axis")]
        for k, value in enumerate(values):
            if value:
                x, y = middle + (k - len(names) / 2) * bar, y_of(value)
                body.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{bar * 0.92:.1f}" height="{height - BOTTOM - y:.1f}" '
                            f'class="{_style(k)}">'
                            f"<title>{escape(f'{names[k]}, {label}: {_num(value)}')}</title></rect>")
    return _figure(ident, title, description, height, "\n".join(body), [(_style(k), name) for k, name in enumerate(names)],
                   (["", *names], [[label, *(_num(v) for v in values)] for label, values in groups]))
