// The picture as a file of its own: its content stands in the page.

import { byId } from "./dom.js";
import { unpackContent } from "./model.js";
import { fillPage } from "./page.js";
import { startTheme } from "./theme.js";
import { Timeline, answerTests } from "./timeline/timeline.js";

const content = unpackContent(JSON.parse(byId("content").textContent));
startTheme();
fillPage(content);
const timeline = new Timeline(byId("timeline"), { room: (top) => Math.max(420, innerHeight - top - 56) });
timeline.show(content);
answerTests(timeline);
