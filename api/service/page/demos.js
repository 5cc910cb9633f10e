// The demos: three to begin with, by picture and plain name, and all others below.

import { plural } from "../viewer/describe.js";
import { button, element } from "../viewer/dom.js";

const RECOMMENDED = [
  ["llama3-8b-h200", "Llama 3 8B on one server with eight GPUs", "Memory is tight: which half of the GPUs holds which layers?"],
  ["bert24-six-accelerators", "BERT on six accelerators with slow links", "A pipeline that hides most of its waiting."],
  ["vgg16-ethernet", "VGG-16 on four machines over Ethernet", "Uneven layers: some are copied, some are not."],
];
const NAMES = {
  "alexnet-two-gpus": "AlexNet on two GPUs", "bert32-a100": "BERT-32 on eight A100", "bert32-widths": "BERT-32, layers split across GPUs",
  "gnmt8-four-gpus": "A translator (GNMT) on four GPUs", "gpt-1.5b-zero-bubble": "GPT 1.5B on eight GPUs", "gpt-6.2b-zero-bubble": "GPT 6.2B on eight GPUs",
  "gpt2-two-processes": "A small GPT-2 on two processes", "lora-13b-estimate": "Fine-tuning a 13B model (LoRA)", "resnet101-mixed-gpus": "ResNet-101 on three kinds of GPU",
  "resnet50-two-hosts": "ResNet-50 on two servers", "resnext50-tight-memory": "ResNeXt-50 in little memory", "two-towers-estimate": "Image and text side by side",
  "vocabulary-256k-estimate": "A language model with a huge vocabulary",
};

export function demoName({ name, model }) { return RECOMMENDED.find(([known]) => known === name)?.[1] ?? NAMES[name] ?? model; }

// `onAsk(name)`: plans it.
export function recommendedDemos(demos, onAsk) {
  const known = RECOMMENDED.filter(([name]) => demos.some((demo) => demo.name === name));
  return known.map(([name, title, why]) => {
    const picture = element("img", { attributes: { src: `static/page/demo-${name}.svg`, alt: "", width: "320", height: "96" } });
    return demoItem(name, { onAsk, className: "demo-card", parts: [picture, element("strong", { text: title }), element("span", { text: why })] });
  });
}

// `has(demo)`: which of them.
export function demoList(demos, onAsk, has = () => true) {
  return demos.filter(has).map((demo) => {
    const figures = `${plural(demo.num_layers, "layer")}, ${plural(demo.num_devices, "device")}`;
    return demoItem(demo.name, { onAsk, title: `${demo.model} on ${demo.machine}`, parts: [element("strong", { text: demoName(demo) }), element("small", { text: figures })] });
  });
}

export function isRecommended({ name }) { return RECOMMENDED.some(([known]) => known === name); }

function demoItem(name, { onAsk, parts, title = null, className = null }) {
  const ask = button("", { onClick: () => onAsk(name), title, className, attributes: { "data-demo": name } });
  ask.append(...parts);
  return element("li", {}, [ask]);
}
