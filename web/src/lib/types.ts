// The server's bodies under their own names. Everything else imports from here, so that how openapi-typescript nests or
// names them (it may part what is said from what is told) matters in one file.
import type { components } from "./api";

type S = components["schemas"];

export type AblateStep = S["AblateStep"];
export type Atlas = S["Atlas"];
export type AtlasHead = S["AtlasHead"];
export type CacheLine = S["CacheLine"];
export type CellAsk = S["CellAsk"];
export type CellResult = S["CellResult"];
export type Check = S["Check"];
export type CheckAsk = S["CheckAsk"];
export type CheckResult = S["CheckResult"];
export type Experiment = S["Experiment"];
export type ExperimentAsk = S["ExperimentAsk"];
export type HeadCard = S["HeadCard"];
export type Interview = S["Interview"];
export type Job = S["Job"];
export type LayerInfo = S["LayerInfo"];
export type Lesson = S["Lesson"];
export type LessonEntry = S["LessonEntry"];
export type Link = S["Link"];
export type LiveCell = S["LiveCell"];
export type Parameter = S["Parameter"];
export type PlanStep = S["ExperimentAsk"]["plan"][number];
export type Problem = S["Problem"];
export type Progress = S["Progress"];
export type Pruning = S["Pruning"];
export type PruningAsk = S["PruningAsk"];
export type RecordingAsk = S["RecordingAsk"];
export type RecordingInfo = S["RecordingInfo"];
export type RoleInfo = S["RoleInfo"];
export type Roles = S["Roles"];
export type Shown = S["Shown"];
export type SizeAsk = S["SizeAsk"];
export type SizeLayer = S["SizeLayer"];
export type SizePreset = S["SizePreset"];
export type SizeReport = S["SizeReport"];
export type StatisticInfo = S["StatisticInfo"];
export type Token = S["Token"];
export type WordInfo = S["WordInfo"];
export type Workspace = S["Workspace"];
export type Worth = S["Worth"];

/** What is asked, with everything optional that has a default. */
export type Asked<T, Needed extends keyof T = never> = Partial<T> & Pick<T, Needed>;
/** How a cell of a coarser level comes from its cells. */
export type How = "mean" | "max";
