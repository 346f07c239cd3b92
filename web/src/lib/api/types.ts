// The bodies of the server's requests and answers under their own names. Every other file imports them from here, so that
// the nesting and naming of openapi-typescript (which may split a request's form of a type from the answer's) matters in
// one file. `schema.d.ts` is generated: `npm run types`.
import type { components } from "./schema";

type S = components["schemas"];

export type AblateStep = S["AblateStep"];
export type Atlas = S["Atlas"];
export type AtlasHead = S["AtlasHead"];
export type Blend = S["Blend"];
export type BlendAsk = S["BlendAsk"];
export type CardMap = S["CardMap"];
export type CardSection = S["CardSection"];
export type CacheLine = S["CacheLine"];
export type CacheShape = S["CacheShape"];
export type CacheTerm = S["CacheTerm"];
export type CellAsk = S["CellAsk"];
export type CellResult = S["CellResult"];
export type Check = S["Check"];
export type CheckAsk = S["CheckAsk"];
export type CircuitRun = S["CircuitRun"];
export type CheckResult = S["Verdict"];
export type Experiment = S["Experiment"];
export type ExperimentAsk = S["ExperimentAsk"];
export type FileEntry = S["FileEntry"];
export type ExamplePair = S["ExamplePair"];
export type FullCard = S["FullCard"];
export type HeadCard = S["HeadCard"];
export type HeadEffects = S["HeadEffects"];
export type HeadPaths = S["HeadPaths"];
export type HeadWriting = S["HeadWriting"];
export type History = S["History"];
export type HistoryAlert = S["HistoryAlert"];
export type HistoryEntry = S["HistoryEntry"];
export type Interview = S["Interview"];
export type Job = S["Job"];
export type KindCard = S["KindCard"];
export type LayerInfo = S["LayerInfo"];
export type LayerKind = S["LayerKind"];
export type Lesson = S["Lesson"];
export type LessonEntry = S["LessonEntry"];
export type LessonScene = S["LessonScene"];
export type Link = S["Link"];
export type Listing = S["Listing"];
export type LiveCell = S["LiveCell"];
export type Pair = S["Pair"];
export type PairAsk = S["PairAsk"];
export type PairReading = S["PairReading"];
export type PairSide = S["PairSide"];
export type Panel = S["Panel"];
export type Parameter = S["Parameter"];
export type PatchAsk = S["PatchAsk"];
export type PlanStep = S["ExperimentAsk"]["plan"][number];
export type Problem = S["Problem"];
export type Progress = S["Progress"];
export type Pruning = S["Pruning"];
export type PruningAsk = S["PruningAsk"];
export type RecordingAsk = S["RecordingAsk"];
export type RecordingInfo = S["RecordingInfo"];
export type RoleInfo = S["RoleInfo"];
export type Roles = S["Roles"];
export type SceneName = S["Trained"]["scene"];
export type Shown = S["Shown"];
export type SizeAsk = S["SizeAsk"];
export type SizeReport = S["SizeReport"];
export type Served = S["Served"];
export type ServedKind = S["ServedKind"];
export type ServedOutside = S["ServedOutside"];
export type SizeShape = S["SizeShape"];
export type StatisticInfo = S["StatisticInfo"];
export type TellingLink = S["TellingLink"];
export type Swap = S["Swap"];
export type SwapAsk = S["SwapAsk"];
export type Token = S["Token"];
export type Trained = S["Trained"];
export type WhyAnswer = S["WhyAnswer"];
export type WhyLook = S["WhyLook"];
export type WhyWriter = S["WhyWriter"];
export type WordInfo = S["WordInfo"];
export type Workspace = S["Workspace"];
export type Worth = S["Worth"];

/** The body of a request: fields that have a default are optional, those of `Needed` are not. */
export type RequestBody<T, Needed extends keyof T = never> = Partial<T> & Pick<T, Needed>;
/** How a cell of a coarser level is pooled from the cells of level 0 that it covers. */
export type How = "mean" | "max";

/** The words of a text and its tokens of no word; each token alone where the words are not known. */
export function wordsOf(info: RecordingInfo): WordInfo[] {
  if (info.words.length) return info.words;
  return info.tokens.map((token, begin) => ({ begin, end: begin + 1, text: token.label }));
}

/** Cells along a side of a tile, at every level: part of a tile's address, so the server cuts maps the same way. */
export const TILE = 256;

export const ROOMS = ["atlas", "head", "compare", "experiment", "size", "learn", "training", "circuit"] as const;
export type Room = (typeof ROOMS)[number];
