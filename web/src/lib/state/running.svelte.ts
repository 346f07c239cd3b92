// Jobs that run on after their room was left: what a room's state starts and keeps, so that other rooms can show and stop it.
import type { Progress, Room } from "../api/types";

export interface RunningJob {
  room: Room;
  words: string;
  readonly progress: Progress | null;
  cancel(): void;
}

export class RunningJobs {
  list = $state.raw<readonly RunningJob[]>([]);

  /** Shows a job until the returned function is called. */
  add(job: RunningJob): () => void {
    this.list = [...this.list, job];
    return () => (this.list = this.list.filter((other) => other !== job));
  }

  /** The jobs that were started in other rooms. */
  outside(room: Room): RunningJob[] {
    return this.list.filter((job) => job.room !== room);
  }
}

const jobs = new WeakMap<object, RunningJobs>();

/** The running jobs of one mounted studio (`owner` is anything that lives as long as it does, as its client). */
export function runningJobsOf(owner: object): RunningJobs {
  const known = jobs.get(owner) ?? new RunningJobs();
  jobs.set(owner, known);
  return known;
}
