// openapi.json sha256:7b9f6ee7e72e63296528326611a2f13c1164804efc04409fc6ee441102230ccc
export interface paths {
    "/api/circuits/alone": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Circuit Alone
         * @description What a set of heads keeps of the answer when all others have the corrupted text's numbers.
         */
        post: operations["circuit_alone"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/circuits/effects": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Patch Heads
         * @description Each head's effect on the answer when it takes its numbers from the other text.
         */
        post: operations["patch_heads"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/circuits/pairs": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Read Pair
         * @description Two texts as a model reads them: their tokens, where they differ, and what it expects next.
         */
        post: operations["read_pair"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/circuits/paths": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Head Paths
         * @description What every earlier head tells one head, by its queries, keys and values.
         */
        post: operations["head_paths"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/circuits/smallest": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Smallest Circuit
         * @description The fewest heads that keep a share of the answer.
         */
        post: operations["smallest_circuit"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/circuits/writing": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Head Writing
         * @description What one head writes to the answer, straight along the residual stream, token by token.
         */
        post: operations["head_writing"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/experiments": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Run Experiment
         * @description Carry out a plan on a text, beside random sets of the same number of heads.
         */
        post: operations["run_experiment"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/experiments/blend": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Blend Heads
         * @description Let all heads of each layer use more and more of one head's map, in two to eleven steps.
         */
        post: operations["blend_heads"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/experiments/{experiment}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Experiment
         * @description The result of an experiment that was run.
         */
        get: operations["experiment"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/histories": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Histories
         * @description The files of watched trainings that can be opened.
         */
        get: operations["histories"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/histories/{history}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * History
         * @description A watched training as far as it is written: as soon as it is no longer the version `seen`, or after `wait`
         *     seconds.
         */
        get: operations["history"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/histories/{history}/curves/{statistic}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * History Curves
         * @description One statistic of every head over the steps of a training.
         */
        get: operations["history_curves"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/histories/{history}/heads/{head}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * History Head
         * @description Every statistic of one head over the steps of a training.
         */
        get: operations["history_head"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/jobs/{job}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Job
         * @description The state of a job, as soon as it ends or after `wait` seconds.
         */
        get: operations["job"];
        put?: never;
        post?: never;
        /**
         * Stop Job
         * @description Stop a job at its next step.
         */
        delete: operations["stop_job"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/lessons": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Lessons
         * @description Every lesson.
         */
        get: operations["lessons"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/lessons/{slug}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Lesson
         * @description One lesson, its numbers computed now. With a seed, the inputs of its checks are drawn at random.
         */
        get: operations["lesson"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/lessons/{slug}/cells/{cell}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Run Cell
         * @description Run a live cell with the reader's parameters.
         */
        post: operations["run_cell"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/lessons/{slug}/checks/{check}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Check
         * @description Judge an answer. The right one is computed as well.
         */
        post: operations["check"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/presets": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Presets
         * @description Architectures by name.
         */
        get: operations["presets"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/prunings": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Prune
         * @description Remove heads for good, and write the smaller checkpoint into the workspace's folder.
         */
        post: operations["prune"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/recordings": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Open Recording
         * @description Record a text through a model, or open a file of the workspace.
         */
        post: operations["open_recording"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/recordings/{recording}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Recording Info
         * @description A recording and one of its texts.
         */
        get: operations["recording_info"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/recordings/{recording}/atlas": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Atlas
         * @description Every head's numbers on a text.
         */
        get: operations["atlas"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/recordings/{recording}/heads/{head}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Head Card
         * @description Everything known about one head on a text.
         */
        get: operations["head_card"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/recordings/{recording}/heads/{head}/card": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Full Card
         * @description The card of one head: what it is in a sentence, with the evidence, measured unless it is remembered.
         */
        post: operations["full_card"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/recordings/{recording}/heads/{head}/worth": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Head Worth
         * @description Measure the effect of ablating one head on a text.
         */
        post: operations["head_worth"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/recordings/{recording}/importance": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Find Importance
         * @description Measure the loss on a text without each head, one by one; the result is the atlas with it as a statistic.
         */
        post: operations["find_importance"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/recordings/{recording}/pairs/{head}/{query}/{key}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Pair
         * @description How one weight comes about: q, k, and every number between them and the weight.
         */
        get: operations["pair"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/recordings/{recording}/pass/{token}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Forward Pass
         * @description One token's way through the layers: each head's and feed-forward's share of what the token became.
         */
        get: operations["forward_pass"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/recordings/{recording}/roles": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Find Roles
         * @description Measure the role of each head of a recording's model on the bundled texts.
         */
        post: operations["find_roles"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/recordings/{recording}/rows/{head}/{row}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Map Row
         * @description One exact row of a head's map: which tokens one token reads.
         */
        get: operations["map_row"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/recordings/{recording}/said/{head}/{query}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Head Output
         * @description What a head (L3H1) or a whole layer (L3) says at one token, and what that adds to the residual stream.
         */
        get: operations["head_output"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/recordings/{recording}/swap": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Swap Word
         * @description Read a text with one word changed: what another word's looks become.
         */
        post: operations["swap_word"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/recordings/{recording}/table": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Table
         * @description Every head's statistics as a file.
         */
        get: operations["table"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/recordings/{recording}/thumbnails": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Thumbnails
         * @description Every head's map, small.
         */
        get: operations["thumbnails"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/recordings/{recording}/tiles/{head}/{level}/{column}/{row}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Tile
         * @description A tile of one head's map: exact cells at level 0, means or maxima of blocks above.
         */
        get: operations["tile"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/recordings/{recording}/why/{head}/{query}/{key}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Why There
         * @description Why a head looks from one token to another: what wrote the query, and what wrote the keys.
         *
         *     `against`: "rest", or the position of one other key.
         */
        get: operations["why_there"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/recordings/{recording}/window/{head}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Window
         * @description A window of one head's exact map as a file.
         */
        get: operations["window"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/recordings/{recording}/words/{query}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Word Row
         * @description One word's exact row in every head: how much of it goes to each word of the text.
         */
        get: operations["word_row"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/sizes": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Size
         * @description Parameters, FLOPs and cache of an architecture.
         */
        post: operations["size"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/trained": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Trained
         * @description What becomes of nets that are trained as each scene of the Experiment room has it.
         */
        get: operations["trained"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/uploads": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Take In
         * @description Add a recording whose file is the body of the request: it is checked as every file that is opened.
         */
        post: operations["take_in"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/workspace": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Workspace
         * @description The models and recordings that can be opened, and the server's limits.
         */
        get: operations["workspace"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
}
export type webhooks = Record<string, never>;
export interface components {
    schemas: {
        /** AblateStep */
        AblateStep: {
            /**
             * Heads
             * @example L3H7, L5
             */
            heads: string;
            /**
             * Kind
             * @default zero
             * @enum {string}
             */
            kind: "zero" | "mean" | "resample" | "first" | "streaming";
            /**
             * Per Position
             * @default false
             */
            per_position: boolean;
            /** Recent */
            recent?: number | null;
            /**
             * Seed
             * @default 0
             */
            seed: number;
            /** Sink */
            sink?: number | null;
            /**
             * @description discriminator enum property added by openapi-typescript
             * @enum {string}
             */
            step: "ablate";
            /** Text */
            text?: string | null;
        };
        /** AloneAsk */
        AloneAsk: {
            /** Clean */
            clean: string;
            /** Corrupted */
            corrupted: string;
            /**
             * Heads
             * @example L3H7, L5
             */
            heads: string;
            /** Model */
            model: string;
            /**
             * Right
             * @default
             */
            right: string;
            /**
             * Wrong
             * @default
             */
            wrong: string;
        };
        /**
         * Alternatives
         * @description A word of a model's sample, where it stands last, and words to put in its place.
         */
        Alternatives: {
            /** Word */
            word: string;
            /** Words */
            words: string[];
        };
        /**
         * AnswerToken
         * @description An answer: the token that stands for it, and that token's probability on the clean and on the corrupted text.
         */
        AnswerToken: {
            /** Clean */
            clean: number;
            /** Corrupted */
            corrupted: number;
            /**
             * Role
             * @enum {string}
             */
            role: "right" | "wrong";
            /** Text */
            text: string;
        };
        /**
         * Arc
         * @description A link of a sentence: the token that looks, the one that is looked at (both from 0), and the weight.
         */
        Arc: {
            /** Key */
            key: number;
            /** Query */
            query: number;
            /** Weight */
            weight: number;
        };
        /**
         * Atlas
         * @description Every head of a recording with its statistics on one text, and its role where it is known (`roles_because`).
         *
         *     Once importance was requested, it is the last statistic: the loss of quality on this text without each head.
         *     `telling`: the link that tells most on this text; null where no two words see each other.
         */
        Atlas: {
            /** Caveat */
            caveat: string;
            /**
             * Exact
             * @description "exact", or which queries were sampled
             */
            exact: string;
            /** Heads */
            heads: components["schemas"]["AtlasHead"][];
            /** Recording */
            recording: string;
            /** Roles Because */
            roles_because: string;
            /** Statistics */
            statistics: components["schemas"]["StatisticInfo"][];
            telling?: components["schemas"]["TellingLink"] | null;
            /** Text */
            text: number;
        };
        /**
         * AtlasHead
         * @description One head. `values` are in the order of the atlas's statistics.
         */
        AtlasHead: {
            /** Head */
            head: string;
            /** Index */
            index: number;
            /** Kv Group */
            kv_group: number;
            /** Layer */
            layer: number;
            role: components["schemas"]["RoleInfo"] | null;
            /** Stack */
            stack: string;
            /** Values */
            values: (number | null)[];
        };
        /** AverageStep */
        AverageStep: {
            /**
             * Heads
             * @example L3H7, L5
             */
            heads: string;
            /**
             * @description discriminator enum property added by openapi-typescript
             * @enum {string}
             */
            step: "average";
        };
        /**
         * Blend
         * @description All heads on their way to one map, in two to eleven steps.
         *
         *     `maps`: base64 of uint16, little-endian, [11, heads, side, side] of `layer`: a share is u / 65,534, 65,535 is a cell
         *     that is not seen; `exact` unless the text is longer than `side`, and a cell is then the mean of a block.
         *     `items`: the example sentences, or the tokens that are among the likeliest at some step, by `kind`.
         */
        Blend: {
            /** Exact */
            exact: boolean;
            /** Heads */
            heads: string[];
            /** Items */
            items: string[];
            /**
             * Kind
             * @enum {string}
             */
            kind: "neighbours" | "guesses" | "";
            /** Layer */
            layer: string;
            /**
             * Layers
             * @description the layers whose maps can be asked for
             */
            layers: string[];
            /** Maps */
            maps: string;
            /** Model */
            model: string;
            /** Side */
            side: number;
            /** Steps */
            steps: components["schemas"]["BlendStep"][];
            /** Text */
            text: string;
            /** Tokens */
            tokens: components["schemas"]["Token"][];
        };
        /**
         * BlendAsk
         * @description A text to read with heads that use more and more of their layer's head 0. `layer`: whose maps, as "L2".
         *
         *     `steps`: at so many shares, from 0 to 1; with fewer the answer comes sooner.
         */
        BlendAsk: {
            /** Layer */
            layer?: string | null;
            /** Model */
            model: string;
            /**
             * Steps
             * @default 11
             */
            steps: number;
            /** Text */
            text: string;
        };
        /**
         * BlendStep
         * @description One tenth of the way: `share` of head 0's weights in every head.
         *
         *     `values` is of each of `Blend.items`; `kept` is the cosine of the text's embedding with that as it was, of a model
         *     that embeds, `loss` the mean loss (nats a token) of a language model, `diversity` how different the heads of a layer
         *     look (0: all the same; mean over layers); null where there is none.
         */
        BlendStep: {
            /** Diversity */
            diversity: number | null;
            /** Figures */
            figures: string;
            /** Headline */
            headline: string;
            /** Kept */
            kept: number | null;
            /** Loss */
            loss: number | null;
            /** Share */
            share: number;
            /** Values */
            values: number[];
        };
        /**
         * CacheLine
         * @description The KV cache of one variant (MHA, GQA, MQA) against context length; `num_bytes` at the requested context.
         */
        CacheLine: {
            /** Name */
            name: string;
            /** Num Bytes */
            num_bytes: number;
            /** Num Kv Heads */
            num_kv_heads: number | null;
            /** Num Parameters */
            num_parameters: number | null;
            /** Own */
            own: boolean;
            /** Points */
            points: components["schemas"]["CachePoint"][];
        };
        /**
         * CachePoint
         * @description The cache at one context length, in tokens.
         */
        CachePoint: {
            /** Context */
            context: number;
            /** Num Bytes */
            num_bytes: number;
        };
        /**
         * CacheShape
         * @description What one variant keeps, and its parameters (null: they cannot be told).
         */
        CacheShape: {
            /** Name */
            name: string;
            /** Num Parameters */
            num_parameters: number | null;
            /** Own */
            own: boolean;
            /** Terms */
            terms: components["schemas"]["CacheTerm"][];
        };
        /**
         * CacheTerm
         * @description Numbers that one token leaves in the cache of all layers that see equally far: `window` tokens at most, all where
         *     that is null. `crosses`: they are of the text that an encoder read.
         */
        CacheTerm: {
            /** Crosses */
            crosses: boolean;
            /** Width */
            width: number;
            /** Window */
            window: number | null;
        };
        /**
         * CardFact
         * @description One line of a section: a number beside chance, as people read them. `head`: the head that it is about.
         */
        CardFact: {
            /** Chance */
            chance: number | null;
            /** Chance Number */
            chance_number: string;
            /** Command */
            command: string;
            /** Head */
            head: string;
            /** Interval */
            interval: string;
            /** Label */
            label: string;
            /** Mark */
            mark: string;
            /** Number */
            number: string;
            /** Unit */
            unit: string;
            /** Value */
            value: number | null;
            /** Words */
            words: string;
        };
        /**
         * CardMap
         * @description The head's map of one short text. `weights[query]`: thousandths, up to the last key above 0.
         *
         *     `query`, `key`: the link that tells most, with its weight; `words`: why this text is shown.
         */
        CardMap: {
            /** Command */
            command: string;
            /** Key */
            key: number;
            /** Query */
            query: number;
            /** Text */
            text: string;
            /** Tokens */
            tokens: string[];
            /** Weight */
            weight: number;
            /** Weights */
            weights: number[][];
            /** Words */
            words: string;
        };
        /**
         * CardSection
         * @description One question about a head, its answer, and the command that gives these numbers.
         *
         *     `note`: on what they rest, or in one line why there are none.
         */
        CardSection: {
            /** Asks */
            asks: string;
            /** Command */
            command: string;
            /** Facts */
            facts: components["schemas"]["CardFact"][];
            /** Name */
            name: string;
            /** Note */
            note: string;
        };
        /**
         * CardValue
         * @description One statistic of one head on this text, its chance level, and its value on the bundled texts (`page`).
         */
        CardValue: {
            /** Chance */
            chance: number | null;
            /** Page */
            page: number | null;
            statistic: components["schemas"]["StatisticInfo"];
            /** Value */
            value: number | null;
        };
        /**
         * CellAsk
         * @description The reader's parameters of a live cell.
         */
        CellAsk: {
            /**
             * Parameters
             * @default {}
             */
            parameters: {
                [key: string]: string | number;
            };
        };
        /**
         * CellResult
         * @description The result of a live cell. `links`: heads on a text, to open in the Head room.
         *
         *     `flow`: stages of lanes of labels of `shown`, a diagram. `cards`: kinds of heads on a sentence. `chart`: curves, on
         *     whose x axis `frames` has a place for each value of `shown`, and `headlines` a sentence; `marked` are the cells that
         *     they speak of, which stand out from `born` on.
         */
        CellResult: {
            /** Born */
            born: number | null;
            /**
             * Cards
             * @default []
             */
            cards: components["schemas"]["KindCard"][];
            /** Cell */
            cell: string;
            /**
             * Chart
             * @default []
             */
            chart: components["schemas"]["Panel"][];
            /**
             * Flow
             * @default []
             */
            flow: string[][][];
            /**
             * Frames
             * @default []
             */
            frames: number[];
            /**
             * Headlines
             * @default []
             */
            headlines: string[];
            /** Lesson */
            lesson: string;
            /**
             * Links
             * @default []
             */
            links: components["schemas"]["HeadLink"][];
            /**
             * Marked
             * @default []
             */
            marked: [
                number,
                number
            ][];
            /** Shown */
            shown: components["schemas"]["Shown"][];
            /** Words */
            words: string;
        };
        /**
         * Check
         * @description A question made from `inputs`, which the answer returns. `cell`: for a prediction, the cell that it is about.
         *
         *     `worth`: what a right answer gives after no, one ... wrong answer; it ends where the solution is shown.
         *     `computed_by`: the function by which a page without a server judges a prediction, "" where it cannot, and for other
         *     questions.
         */
        Check: {
            /**
             * Answer
             * @enum {string}
             */
            answer: "number" | "choice" | "text";
            /** Cell */
            cell: string | null;
            /** Check */
            check: string;
            /** Choices */
            choices: string[];
            /**
             * Computed By
             * @default
             */
            computed_by: string;
            /** Inputs */
            inputs: {
                [key: string]: string | number;
            };
            /**
             * @description discriminator enum property added by openapi-typescript
             * @enum {string}
             */
            kind: "check";
            /** Points */
            points: number;
            /** Question */
            question: string;
            /** Worth */
            worth: number[];
        };
        /**
         * CheckAsk
         * @description An answer to a question with these inputs. `cell`: the parameters of the cell that a prediction is about.
         *
         *     `num_wrong`: how many wrong answers, or looks at the hint, there were before. `show`: the verdict on the answer; or,
         *     whatever the answer, the hint or the solution.
         */
        CheckAsk: {
            /**
             * Answer
             * @default
             */
            answer: string;
            /**
             * Cell
             * @default {}
             */
            cell: {
                [key: string]: string | number;
            };
            /**
             * Inputs
             * @default {}
             */
            inputs: {
                [key: string]: string | number;
            };
            /**
             * Num Wrong
             * @default 0
             */
            num_wrong: number;
            /**
             * Show
             * @default verdict
             * @enum {string}
             */
            show: "verdict" | "hint" | "solution";
        };
        /**
         * CircuitRun
         * @description A set of heads run alone, all others with their numbers of the corrupted text, and the reverse.
         *
         *     `kept` and `left`: the shares of the answer that these heads keep, and that are left when these alone are
         *     corrupted; `random_kept` and `random_left`: the same of random sets of the same number of heads. `costs`: what is
         *     lost when one head is taken out of the set. `keep`: the share that was searched for, null for a set of the reader's
         *     own.
         */
        CircuitRun: {
            /** Costs */
            costs: number[];
            /** Heads */
            heads: string[];
            /** Keep */
            keep: number | null;
            /** Kept */
            kept: number;
            /** Left */
            left: number;
            /** Notes */
            notes: {
                [key: string]: string;
            };
            /** Num Heads */
            num_heads: number;
            /** Random Kept */
            random_kept: number[];
            /** Random Left */
            random_left: number[];
            /** Then */
            then: string;
            /** Words */
            words: string;
        };
        /**
         * CodeLine
         * @description A line of code. `steps`: labels of the values that it computes; "Q" stands for "Q, head 1" as well.
         */
        CodeLine: {
            /** Steps */
            steps: string[];
            /** Text */
            text: string;
        };
        /** CopyStep */
        CopyStep: {
            /**
             * Heads
             * @example L3H7, L5
             */
            heads: string;
            /**
             * Share
             * @default 1
             */
            share: number;
            /**
             * Source
             * @example L3H7, L5
             */
            source: string;
            /**
             * @description discriminator enum property added by openapi-typescript
             * @enum {string}
             */
            step: "copy";
        };
        /**
         * Curve
         * @description A line over a training. `bold` ones are what its panel is about.
         */
        Curve: {
            /**
             * Bold
             * @default true
             */
            bold: boolean;
            /** Name */
            name: string;
            /** X */
            x: number[];
            /** Y */
            y: number[];
        };
        /**
         * DiversityChange
         * @description How different the heads of a layer look, 0 (all the same) to 1, mean over layers; null where `words` say why.
         */
        DiversityChange: {
            /** After */
            after: number | null;
            /** Before */
            before: number | null;
            /** Words */
            words: string;
        };
        /**
         * EffectVerdict
         * @description What an effect comes to, in words, from its rank among `controls` random sets: `above` of them change as much.
         */
        EffectVerdict: {
            /** Above */
            above: number;
            /** Controls */
            controls: number;
            /** Level */
            level: string;
            /** Words */
            words: string;
        };
        /**
         * EvidenceInfo
         * @description The measurement behind a role; see `manyheads.roles` Evidence.
         */
        EvidenceInfo: {
            /** Chance */
            chance: number | null;
            /** Distance */
            distance: number | null;
            /** Given */
            given: number | null;
            /** High */
            high: number | null;
            /** Low */
            low: number | null;
            /** Num Queries */
            num_queries: number;
            /** Score */
            score: number | null;
            /** Statistic */
            statistic: string;
            /** Words */
            words: string;
        };
        /**
         * ExamplePair
         * @description Two texts that differ in one thing, the clean one's answer, and the corrupted one's.
         */
        ExamplePair: {
            /** Clean */
            clean: string;
            /** Corrupted */
            corrupted: string;
            /** Right */
            right: string;
            /** Wrong */
            wrong: string;
        };
        /**
         * Experiment
         * @description What a plan changed. A positive `change` is for the worse, in `unit`; `control`: that of random sets of heads.
         *
         *     `verdict`: what that comes to, in words. `diversity`: of the heads' maps. `neighbours`: of a model that embeds.
         *     `per_token`: the change of each token, null where a token has none; `per_token_words` names the measure (the loss of
         *     a language model; for other models the turn of a token's last state: 1 - cosine).
         *     `before_recording` and `after_recording` can be opened and compared like any other recording.
         */
        Experiment: {
            /** After */
            after: number | null;
            /** After Recording */
            after_recording: string;
            /** Before */
            before: number | null;
            /** Before Recording */
            before_recording: string;
            /**
             * Beside
             * @description what random heads do, or why there are none; empty where nothing changes
             */
            beside: string;
            /** Change */
            change: number;
            /** Control */
            control: number[];
            /**
             * Control Guesses
             * @description the probability of the likeliest next token under each random set; empty without guesses
             */
            control_guesses: number[];
            diversity: components["schemas"]["DiversityChange"];
            /** Guesses */
            guesses: components["schemas"]["Guess"][];
            /**
             * Headline
             * @description what changed, in plain words
             */
            headline: string;
            /** High */
            high: number | null;
            /** Id */
            id: string;
            /** Low */
            low: number | null;
            /** Metric */
            metric: string;
            /** Model */
            model: string;
            /** Name */
            name: string;
            /** Neighbours */
            neighbours: components["schemas"]["Neighbour"][];
            /** Notes */
            notes: {
                [key: string]: string;
            };
            /** Per Token */
            per_token: (number | null)[];
            /** Per Token Words */
            per_token_words: string;
            /** Plan */
            plan: (components["schemas"]["AblateStep"] | components["schemas"]["ScaleStep"] | components["schemas"]["AverageStep"] | components["schemas"]["CopyStep"] | components["schemas"]["SkipStep"] | components["schemas"]["SkipPositionsStep"])[];
            /** Plan Words */
            plan_words: string;
            /** Share Of Controls Above */
            share_of_controls_above: number | null;
            /** Text */
            text: string;
            /** Tokens */
            tokens: components["schemas"]["Token"][];
            /** Unit */
            unit: string;
            verdict: components["schemas"]["EffectVerdict"];
            /** Words */
            words: string;
        };
        /**
         * ExperimentAsk
         * @description A plan to carry out on a text. `corpus`: the source of "mean" and "resample" values, by default the text.
         */
        ExperimentAsk: {
            /**
             * Controls
             * @default 10
             */
            controls: number;
            /** Corpus */
            corpus?: string | null;
            /**
             * Metric
             * @default auto
             */
            metric: string;
            /** Model */
            model: string;
            /**
             * Name
             * @default
             */
            name: string;
            /** Plan */
            plan: (components["schemas"]["AblateStep"] | components["schemas"]["ScaleStep"] | components["schemas"]["AverageStep"] | components["schemas"]["CopyStep"] | components["schemas"]["SkipStep"] | components["schemas"]["SkipPositionsStep"])[];
            /**
             * Seed
             * @default 0
             */
            seed: number;
            /** Text */
            text: string;
        };
        /**
         * FileEntry
         * @description A file of the workspace that holds a recording; `id` is the id of that recording.
         */
        FileEntry: {
            /** Id */
            id: string;
            /** Name */
            name: string;
            /** Num Bytes */
            num_bytes: number;
            /** Unreadable */
            unreadable: string | null;
        };
        /**
         * FullCard
         * @description What is known of one head of a model, in a sentence and sections; see `manyheads.cards` Card.
         */
        FullCard: {
            /** Family */
            family: string;
            /** Head */
            head: string;
            /** Maps */
            maps: components["schemas"]["CardMap"][];
            /** Model */
            model: string;
            /** Notes */
            notes: {
                [key: string]: string;
            };
            /** Place */
            place: string;
            /** Role */
            role: string;
            /** Sections */
            sections: components["schemas"]["CardSection"][];
            /** Sentence */
            sentence: string;
        };
        /**
         * Guess
         * @description A token that could come next, and its probability before and after the plan.
         */
        Guess: {
            /** After */
            after: number;
            /** Before */
            before: number;
            /** Token */
            token: string;
        };
        /** HTTPValidationError */
        HTTPValidationError: {
            /** Detail */
            detail?: components["schemas"]["ValidationError"][];
        };
        /**
         * HeadCard
         * @description One head. `links`: each query's best key apart from sinks, best first. `because`: what computed its numbers.
         */
        HeadCard: {
            /** Because */
            because: string;
            /** Caveat */
            caveat: string;
            /** Exact */
            exact: string;
            /** Head */
            head: string;
            /** Kv Group */
            kv_group: number;
            layer: components["schemas"]["LayerInfo"];
            /** Links */
            links: components["schemas"]["Link"][];
            /** Recording */
            recording: string;
            role: components["schemas"]["RoleInfo"] | null;
            /** Shares With */
            shares_with: string[];
            /** Text */
            text: number;
            /** Values */
            values: components["schemas"]["CardValue"][];
        };
        /**
         * HeadEffects
         * @description What every head does to the answer, as a share of the difference between the two texts' answers.
         *
         *     `control`: the same of random heads with an unrelated text's numbers. `beyond`: the heads whose effect is larger
         *     than that of every control. `kv_groups`: each head's key/value head in its layer, the same for heads that share one.
         *     `verdict`: what it comes to; `then`: what that means, and how sure it is.
         */
        HeadEffects: {
            /** Beyond */
            beyond: string[];
            /** Clean */
            clean: number;
            /** Control */
            control: number[];
            /** Corrupted */
            corrupted: number;
            /**
             * Direction
             * @enum {string}
             */
            direction: "denoise" | "noise";
            /** Effects */
            effects: (number | null)[];
            /** Heads */
            heads: string[];
            /** Kv Groups */
            kv_groups: number[];
            /** Metric */
            metric: string;
            /** Model */
            model: string;
            /** Notes */
            notes: {
                [key: string]: string;
            };
            /** Then */
            then: string;
            /** Unit */
            unit: string;
            /** Verdict */
            verdict: string;
            /**
             * What
             * @enum {string}
             */
            what: "out" | "q" | "k" | "v" | "weights";
        };
        /**
         * HeadLink
         * @description A head to look at in the studio's Head room, or by `manyheads head`, on this text.
         */
        HeadLink: {
            /** Head */
            head: string;
            /**
             * Model
             * @default minilm
             */
            model: string;
            /** Text */
            text: string;
        };
        /**
         * HeadPath
         * @description What goes from an earlier head to one channel of this one: a share of the answer.
         */
        HeadPath: {
            /**
             * Channel
             * @enum {string}
             */
            channel: "q" | "k" | "v";
            /** Effect */
            effect: number | null;
            /** Sender */
            sender: string;
        };
        /**
         * HeadPaths
         * @description Whom a head listens to: every path from an earlier head into its queries, keys and values.
         */
        HeadPaths: {
            /**
             * Direction
             * @enum {string}
             */
            direction: "denoise" | "noise";
            /** Head */
            head: string;
            /** Notes */
            notes: {
                [key: string]: string;
            };
            /** Paths */
            paths: components["schemas"]["HeadPath"][];
            /** Words */
            words: string;
        };
        /**
         * HeadWriting
         * @description What one head wrote to the answer on each text, straight along the residual stream, and from which tokens.
         *
         *     `parts` are null where something acts between the head and its output projection; `words` then say so. `rank`: 1 for
         *     the head that adds most to the answer on the clean text, of `num_heads`.
         */
        HeadWriting: {
            /** Clean */
            clean: number;
            /** Clean Parts */
            clean_parts: components["schemas"]["KeyPart"][] | null;
            /** Clean Total */
            clean_total: number;
            /** Corrupted */
            corrupted: number;
            /** Corrupted Parts */
            corrupted_parts: components["schemas"]["KeyPart"][] | null;
            /** Corrupted Total */
            corrupted_total: number;
            /** Head */
            head: string;
            /** Notes */
            notes: {
                [key: string]: string;
            };
            /** Num Heads */
            num_heads: number;
            /** Rank */
            rank: number;
            /** Words */
            words: string;
        };
        /**
         * History
         * @description A watched training. `version` changes with the file; `last_step` is null before the first watched step.
         *
         *     `limits`: what alerts look for, of the statistics that there are, as in "entropy under 0.1 nats".
         */
        History: {
            /** Alerts */
            alerts: components["schemas"]["HistoryAlert"][];
            /** Because */
            because: string[];
            /** Every */
            every: number | null;
            /** First Step */
            first_step: number | null;
            /** Heads */
            heads: string[];
            /** Id */
            id: string;
            /** Last Step */
            last_step: number | null;
            /** Limits */
            limits: string[];
            /** Model */
            model: string;
            /** Name */
            name: string;
            /** Num Steps */
            num_steps: number;
            /** Path */
            path: string;
            /** Statistics */
            statistics: components["schemas"]["HistoryStatistic"][];
            /** Version */
            version: string;
        };
        /**
         * HistoryAlert
         * @description A head past a limit: the first watched step at which it was, its value there, whether it still is.
         */
        HistoryAlert: {
            /** Head */
            head: string;
            /** Lasts */
            lasts: boolean;
            /** Limit */
            limit: number;
            /** Rule */
            rule: string;
            /** Statistic */
            statistic: string;
            /** Step */
            step: number;
            /** Value */
            value: number | null;
            /** Words */
            words: string;
        };
        /**
         * HistoryEntry
         * @description A file that a watched training writes. `unreadable`: why it cannot be read, null where it can.
         */
        HistoryEntry: {
            /** Id */
            id: string;
            /** Name */
            name: string;
            /** Unreadable */
            unreadable: string | null;
        };
        /**
         * HistoryStatistic
         * @description A statistic that a training was watched for. `is_maximum`: of a layer, the largest of its heads says most.
         */
        HistoryStatistic: {
            /** Is Maximum */
            is_maximum: boolean;
            /** Meaning */
            meaning: string;
            /** Name */
            name: string;
        };
        /**
         * Interview
         * @description A question with a model answer, and the points of a good answer, for the reader to tick.
         */
        Interview: {
            /** Html */
            html: string;
            /** Interview */
            interview: string;
            /**
             * @description discriminator enum property added by openapi-typescript
             * @enum {string}
             */
            kind: "interview";
            /** Points */
            points: string[];
            /** Question */
            question: string;
        };
        /**
         * Job
         * @description A job and its state. `result` is set when `state` is "done", `problem` when it is "failed".
         *
         *     A request with `wait` (seconds) is answered as soon as the job ends. A job that nobody requests is stopped.
         *     A result of a room that others bring is plain data here: the route that starts the job says what it is.
         */
        Job: {
            /** Id */
            id: string;
            /**
             * Kind
             * @enum {string}
             */
            kind: "recording" | "roles" | "importance" | "worth" | "experiment" | "blend" | "pruning" | "cell" | "swap" | "pair" | "patching" | "writing" | "paths" | "circuit" | "card";
            problem: components["schemas"]["Problem"] | null;
            progress: components["schemas"]["Progress"];
            /** Result */
            result: components["schemas"]["RecordingInfo"] | components["schemas"]["Roles"] | components["schemas"]["Atlas"] | components["schemas"]["Worth"] | components["schemas"]["Swap"] | components["schemas"]["Experiment"] | components["schemas"]["Blend"] | components["schemas"]["Pruning"] | components["schemas"]["PairReading"] | components["schemas"]["HeadEffects"] | components["schemas"]["HeadWriting"] | components["schemas"]["HeadPaths"] | components["schemas"]["CircuitRun"] | components["schemas"]["FullCard"] | {
                [key: string]: components["schemas"]["JsonValue"];
            } | null;
            /** Seconds */
            seconds: number;
            /**
             * State
             * @enum {string}
             */
            state: "running" | "done" | "failed" | "cancelled";
        };
        JsonValue: unknown;
        /**
         * KeptScenes
         * @description What a saved page keeps of the scenes that need the model: of one head, at one token.
         *
         *     `passes`: tokens whose forward pass is kept. `swap`: a word of the text and the words that were put in its place,
         *     `at` its first token; null where none is kept.
         */
        KeptScenes: {
            /** At */
            at: number;
            /** Head */
            head: string;
            /** Passes */
            passes: number[];
            /** Query */
            query: number;
            swap: components["schemas"]["Alternatives"] | null;
        };
        /**
         * KeyPart
         * @description What a head took from one token: its weight there, and what that added to the answer, in logits.
         */
        KeyPart: {
            /** Value */
            value: number;
            /** Weight */
            weight: number;
        };
        /**
         * KindCard
         * @description A kind of head, on a sentence. `head` does it, or comes nearest; `origin` says whose it is.
         *
         *     `arcs` are the links to draw; `scores`, `chance`: what the head does, and what chance does; `next_question`:
         *     what to ask before believing it.
         */
        KindCard: {
            /** Arcs */
            arcs: components["schemas"]["Arc"][];
            /** Chance */
            chance: string;
            /** Head */
            head: string;
            /** Next Question */
            next_question: string;
            /** Origin */
            origin: string;
            /** Pattern */
            pattern: string;
            /** Reason */
            reason: string;
            /** Scores */
            scores: string;
            /** Title */
            title: string;
            /** Tokens */
            tokens: string[];
        };
        /**
         * LayerInfo
         * @description One attention layer. Each run of `num_heads / num_kv_heads` heads shares its keys and values.
         */
        LayerInfo: {
            /** Because */
            because: string;
            /** Causal */
            causal: boolean;
            /** Crosses */
            crosses: boolean;
            /**
             * Formula
             * @description how a row of weights is computed from q and k
             * @default
             */
            formula: string;
            /** Layer */
            layer: number;
            /**
             * Looks At
             * @description the same for its keys; null where they are not text
             */
            looks_at: string | null;
            /** Module */
            module: string;
            /** Name */
            name: string;
            /** Num Heads */
            num_heads: number;
            /** Num Keys */
            num_keys: number;
            /** Num Kv Heads */
            num_kv_heads: number;
            /** Num Queries */
            num_queries: number;
            /** Qk Dim */
            qk_dim: number;
            /**
             * Reads
             * @description whose tokens its queries are: a key of `tokens_of`, or "" for `tokens`
             */
            reads: string;
            /** Stack */
            stack: string;
            /** V Dim */
            v_dim: number;
        };
        /**
         * LayerKind
         * @description Equal layers, drawn once: how many, and the parameters of one by part; `per_kv_head` of them come with each
         *     key/value head.
         */
        LayerKind: {
            /** Count */
            count: number;
            /** Kind */
            kind: string;
            /** Parts */
            parts: {
                [key: string]: number;
            };
            /** Per Kv Head */
            per_kv_head: {
                [key: string]: number;
            };
        };
        /**
         * Lesson
         * @description A whole lesson. `seed`: that of the checks' inputs where they were drawn, null where they are the page's own.
         *
         *     `language`: of its text; `languages`: those that it can be had in.
         */
        Lesson: {
            /**
             * Language
             * @default en
             */
            language: string;
            /**
             * Languages
             * @default [
             *       "en"
             *     ]
             */
            languages: string[];
            /** Minutes */
            minutes: number;
            /** Parts */
            parts: (components["schemas"]["Prose"] | components["schemas"]["LiveCell"] | components["schemas"]["Check"] | components["schemas"]["Interview"] | components["schemas"]["LessonScene"])[];
            /** Seed */
            seed: number | null;
            /** Slug */
            slug: string;
            /** Sources */
            sources: string[];
            /** Summary */
            summary: string;
            /** Title */
            title: string;
        };
        /**
         * LessonEntry
         * @description A lesson of the list. `points`: the points of each of its questions, by the question's name.
         *
         *     `group`: under which it is listed; `everyone`: whether everybody should take it.
         */
        LessonEntry: {
            /** Everyone */
            everyone: boolean;
            /** Group */
            group: string;
            /** Minutes */
            minutes: number;
            /** Num Checks */
            num_checks: number;
            /** Points */
            points: {
                [key: string]: number;
            };
            /** Slug */
            slug: string;
            /** Summary */
            summary: string;
            /** Title */
            title: string;
        };
        /**
         * LessonScene
         * @description A place for a scene of the player, on this sentence: `head` and `word` are those that it begins with.
         */
        LessonScene: {
            /** Head */
            head: string;
            /**
             * @description discriminator enum property added by openapi-typescript
             * @enum {string}
             */
            kind: "scene";
            /**
             * Scene
             * @enum {string}
             */
            scene: "word" | "layer";
            /** Sentence */
            sentence: string;
            /** Title */
            title: string;
            /** Word */
            word: string;
        };
        /** Limits */
        Limits: {
            /** Max Running */
            max_running: number;
            /** Max Steps */
            max_steps: number;
            /** Max Text */
            max_text: number;
        };
        /**
         * Link
         * @description One weight of a map: a query position and a key position.
         */
        Link: {
            /** Key */
            key: number;
            /** Query */
            query: number;
            /** Weight */
            weight: number;
        };
        /**
         * Listing
         * @description The code of a cell in the library `name`, to read.
         */
        Listing: {
            /** Lines */
            lines: components["schemas"]["CodeLine"][];
            /** Name */
            name: string;
        };
        /**
         * LiveCell
         * @description A live cell: `cell` names an experiment of the library; the page never sends code. `at_once`: run when opened.
         *
         *     `wide`: shown below its text, not beside it. `page_part`: the page's own part that computes it and stands in its
         *     place, "" where there is none. `computed_by`: the function by which a page without a server computes it, "" where it
         *     cannot.
         */
        LiveCell: {
            /**
             * At Once
             * @default false
             */
            at_once: boolean;
            /** Cell */
            cell: string;
            /**
             * Code
             * @default []
             */
            code: components["schemas"]["Listing"][];
            /**
             * Computed By
             * @default
             */
            computed_by: string;
            /**
             * @description discriminator enum property added by openapi-typescript
             * @enum {string}
             */
            kind: "cell";
            /**
             * Page Part
             * @default
             * @enum {string}
             */
            page_part: "" | "draw-a-head";
            /** Parameters */
            parameters: components["schemas"]["Parameter"][];
            /** Title */
            title: string;
            /**
             * Wide
             * @default false
             */
            wide: boolean;
        };
        /**
         * ModelEntry
         * @description A model of the workspace, bundled or a folder. `unavailable`: why it cannot be loaded, null where it can.
         *
         *     `device`: where it computes, and why. `sample`: a text of the kind that it reads, to begin with; `question`: offered
         *     at the first visit to that text; `swap`: a word of it to change; `pair`: two such texts for the room Circuit, null
         *     of a bundled model that predicts no tokens.
         */
        ModelEntry: {
            /** Bundled */
            bundled: boolean;
            /** Device */
            device: string;
            /** Loaded */
            loaded: boolean;
            /** Name */
            name: string;
            pair: components["schemas"]["ExamplePair"] | null;
            question: components["schemas"]["Question"] | null;
            /** Sample */
            sample: string;
            swap: components["schemas"]["Alternatives"] | null;
            /** Title */
            title: string;
            /** Unavailable */
            unavailable: string | null;
        };
        /**
         * Neighbour
         * @description An example sentence, and the cosine of its embedding with the text's, before and under the plan.
         */
        Neighbour: {
            /** After */
            after: number;
            /** Before */
            before: number;
            /** Sentence */
            sentence: string;
        };
        /**
         * NextToken
         * @description A token that may come next, as an answer is written (its leading space and all), and its probability.
         */
        NextToken: {
            /** Probability */
            probability: number;
            /** Text */
            text: string;
        };
        /**
         * OneHeadAsk
         * @description The same about one head. `direction` is that of the paths into it.
         */
        OneHeadAsk: {
            /** Clean */
            clean: string;
            /** Corrupted */
            corrupted: string;
            /**
             * Direction
             * @default denoise
             * @enum {string}
             */
            direction: "denoise" | "noise";
            /** Head */
            head: string;
            /** Model */
            model: string;
            /**
             * Right
             * @default
             */
            right: string;
            /**
             * Wrong
             * @default
             */
            wrong: string;
        };
        /**
         * Pair
         * @description How one weight comes about: q and k of the pair, and every number between them and the weight.
         *
         *     `scaled` is `scale * sum(q * k)`; `score` is that after the softcap and with `bias` added, where the layer has them.
         *     `weight` is `exp(score - lse)`, and 0 for a key that the query does not see. `about` says what q and k are.
         */
        Pair: {
            /** About */
            about: string;
            /** Bias */
            bias: number | null;
            /** Head */
            head: string;
            /** K */
            k: number[];
            /** Key */
            key: number;
            /**
             * Lse
             * @description log of the summed exp(score) of the row; null for a row that sees nothing
             */
            lse: number | null;
            /** Num Visible */
            num_visible: number;
            /** Q */
            q: number[];
            /** Query */
            query: number;
            /** Scale */
            scale: number;
            /** Scaled */
            scaled: number;
            /** Score */
            score: number;
            /**
             * Sink
             * @description the learned sink's logit, which is part of `lse`; null where there is none
             */
            sink: number | null;
            /** Softcap */
            softcap: number | null;
            /** Visible */
            visible: boolean;
            /** Weight */
            weight: number;
        };
        /**
         * PairAsk
         * @description Two texts and their answers.
         *
         *     With both answers the logit of `right` less that of `wrong` is compared; with the right one alone its logit; with
         *     none all of the next token's distribution.
         */
        PairAsk: {
            /** Clean */
            clean: string;
            /** Corrupted */
            corrupted: string;
            /** Model */
            model: string;
            /**
             * Right
             * @default
             */
            right: string;
            /**
             * Wrong
             * @default
             */
            wrong: string;
        };
        /**
         * PairReading
         * @description A pair as the model reads it. `trouble`: why it cannot be patched, and what `about` that is; null where it can.
         *
         *     `differs`: the positions at which the two texts have unlike tokens; of texts of unlike length the first one alone.
         *     `heads`: all of the model, layer by layer, before any of them is patched.
         */
        PairReading: {
            /** About */
            about: ("model" | "texts" | "answers") | null;
            /** Aligned */
            aligned: boolean;
            /** Answers */
            answers: components["schemas"]["AnswerToken"][];
            clean: components["schemas"]["PairSide"];
            /**
             * Compared
             * @description what of the two texts is compared, in words
             */
            compared: string;
            corrupted: components["schemas"]["PairSide"];
            /** Differs */
            differs: number[];
            /** Heads */
            heads: string[];
            /** Model */
            model: string;
            /**
             * Predicts
             * @description whether the model predicts tokens at all
             */
            predicts: boolean;
            /** Trouble */
            trouble: string | null;
        };
        /**
         * PairSide
         * @description One text of a pair: its tokens, and what the model expects next, the likeliest first.
         */
        PairSide: {
            /** Next */
            next: components["schemas"]["NextToken"][];
            /** Tokens */
            tokens: components["schemas"]["Token"][];
        };
        /**
         * Panel
         * @description Curves over one y axis, which begins at 0; `top`: its end, None where the curves say.
         */
        Panel: {
            /** Curves */
            curves: components["schemas"]["Curve"][];
            /** Title */
            title: string;
            /** Top */
            top?: number | null;
        };
        /**
         * Parameter
         * @description A parameter of a cell, which the reader may change.
         *
         *     `fills`, for a choice: the values that each choice sets for other parameters. One choice sets none: the page selects
         *     it as soon as the reader edits a value that another choice has set. `whole`: whether it is a whole number.
         */
        Parameter: {
            /** Choices */
            choices: string[];
            /**
             * Fills
             * @default {}
             */
            fills: {
                [key: string]: {
                    [key: string]: string;
                };
            };
            /** High */
            high: number | null;
            /**
             * Kind
             * @enum {string}
             */
            kind: "text" | "number" | "choice";
            /** Label */
            label: string;
            /** Low */
            low: number | null;
            /** Name */
            name: string;
            /** Step */
            step: number | null;
            /** Value */
            value: string | number;
            /**
             * Whole
             * @default false
             */
            whole: boolean;
        };
        /** PatchAsk */
        PatchAsk: {
            /** Clean */
            clean: string;
            /**
             * Controls
             * @default 10
             */
            controls: number;
            /** Corrupted */
            corrupted: string;
            /**
             * Direction
             * @default denoise
             * @enum {string}
             */
            direction: "denoise" | "noise";
            /** Model */
            model: string;
            /**
             * Right
             * @default
             */
            right: string;
            /**
             * Seed
             * @default 0
             */
            seed: number;
            /**
             * What
             * @default out
             * @enum {string}
             */
            what: "out" | "q" | "k" | "v" | "weights";
            /**
             * Wrong
             * @default
             */
            wrong: string;
        };
        /**
         * Problem
         * @description The body of every answer that is not 2xx. `words`, for people: what was asked, what came, what to do.
         */
        Problem: {
            /** Kind */
            kind: string;
            /** Words */
            words: string;
        };
        /** Progress */
        Progress: {
            /** Done */
            done: number;
            /** Total */
            total: number | null;
            /** Words */
            words: string;
        };
        /** Prose */
        Prose: {
            /** Html */
            html: string;
            /**
             * @description discriminator enum property added by openapi-typescript
             * @enum {string}
             */
            kind: "prose";
        };
        /**
         * Pruning
         * @description A checkpoint that was written, and how many parameters it saved.
         */
        Pruning: {
            /** Folder */
            folder: string;
            /** Heads */
            heads: string[];
            /** Model */
            model: string;
            /** Parameters After */
            parameters_after: number;
            /** Parameters Before */
            parameters_before: number;
            /**
             * Stock
             * @description whether stock transformers loads the checkpoint as it is
             */
            stock: boolean;
            /** Words */
            words: string;
        };
        /**
         * PruningAsk
         * @description Heads to remove for good. `name`: of the folder to write inside the workspace's folder.
         */
        PruningAsk: {
            /**
             * Empty Layers
             * @default false
             */
            empty_layers: boolean;
            /**
             * Heads
             * @example L3H7, L5
             */
            heads: string;
            /** Model */
            model: string;
            /** Name */
            name: string;
        };
        /**
         * Question
         * @description A text and two of its words: which heads link them? `words` offer it to a reader.
         */
        Question: {
            /** Key */
            key: string;
            /** Query */
            query: string;
            /** Text */
            text: string;
            /** Words */
            words: string;
        };
        /**
         * RecordingAsk
         * @description A text to run through a model (`plan`: edits of its heads), or a file of the workspace to open.
         *
         *     `values`: keep values also where the recording is large.
         */
        RecordingAsk: {
            /** File */
            file?: string | null;
            /** Model */
            model?: string | null;
            /**
             * Plan
             * @default []
             */
            plan: (components["schemas"]["AblateStep"] | components["schemas"]["ScaleStep"] | components["schemas"]["AverageStep"] | components["schemas"]["CopyStep"] | components["schemas"]["SkipStep"] | components["schemas"]["SkipPositionsStep"])[];
            /** Text */
            text?: string | null;
            /**
             * Values
             * @default false
             */
            values: boolean;
        };
        /**
         * RecordingInfo
         * @description A recording and one of its texts (or windows of a long text): number `text` of `num_texts`.
         *
         *     `tokens_of`: the tokens of other stacks, where they read another text (a decoder). `backend` and `because` say what
         *     computed the numbers and why; `notes` hold everything else about their origin.
         */
        RecordingInfo: {
            /** Backend */
            backend: string;
            /** Because */
            because: string;
            /** Embed Dim */
            embed_dim: number | null;
            /** Id */
            id: string;
            /** @description of a saved page alone: scenes that need the model */
            kept?: components["schemas"]["KeptScenes"] | null;
            /** Layers */
            layers: components["schemas"]["LayerInfo"][];
            /**
             * Mask Token
             * @description what the model was trained to read for a hidden token
             */
            mask_token?: string | null;
            /**
             * Max Level
             * @description the level at which the largest map fits one tile
             */
            max_level: number;
            /**
             * Min Level
             * @description the finest level available: 0, except in a saved page
             * @default 0
             */
            min_level: number;
            /** Model */
            model: string;
            /**
             * Model Here
             * @description whether the model can be run, as experiments, roles and edits need
             */
            model_here: boolean;
            /** Notes */
            notes: {
                [key: string]: string;
            };
            /** Num Texts */
            num_texts: number;
            /** Num Tokens */
            num_tokens: number;
            /**
             * Part Words
             * @description which part this is, where there are several
             * @default
             */
            part_words: string;
            /**
             * Source
             * @description "typed", "file NAME", or "typed, with heads edited"
             */
            source: string;
            /** Text */
            text: number;
            /** Title */
            title: string;
            /** Tokens */
            tokens: components["schemas"]["Token"][];
            /** Tokens Of */
            tokens_of: {
                [key: string]: components["schemas"]["Token"][];
            };
            /** Words */
            words: components["schemas"]["WordInfo"][];
            /**
             * Written
             * @description the whole input text; of several, the one that this part belongs to
             */
            written: string;
        };
        /**
         * RoleEntry
         * @description A head and its role.
         */
        RoleEntry: {
            /** Head */
            head: string;
            role: components["schemas"]["RoleInfo"];
        };
        /**
         * RoleInfo
         * @description A head's role, measured on the bundled texts. `family`: the group of roles with one colour and letter.
         */
        RoleInfo: {
            evidence: components["schemas"]["EvidenceInfo"];
            /** Family */
            family: string;
            /** Name */
            name: string;
        };
        /**
         * Roles
         * @description The roles of all heads, and how many texts and tokens they were measured on.
         */
        Roles: {
            /** Because */
            because: string;
            /** Num Texts */
            num_texts: number;
            /** Num Tokens */
            num_tokens: number;
            /** Recording */
            recording: string;
            /** Roles */
            roles: components["schemas"]["RoleEntry"][];
        };
        /** ScaleStep */
        ScaleStep: {
            /** Factor */
            factor: number;
            /**
             * Heads
             * @example L3H7, L5
             */
            heads: string;
            /**
             * @description discriminator enum property added by openapi-typescript
             * @enum {string}
             */
            step: "scale";
        };
        /**
         * Served
         * @description What the page needs to divide a decoder over GPUs. `runs`: an index into `kinds`, and how many such layers follow
         *     one another; `first`, `last`: what the first stage and the last have beside layers.
         */
        Served: {
            /** Embed Dim */
            embed_dim: number;
            first: components["schemas"]["ServedOutside"];
            /** Kinds */
            kinds: components["schemas"]["ServedKind"][];
            last: components["schemas"]["ServedOutside"];
            /** Runs */
            runs: [
                number,
                number
            ][];
            /** Vocab Size */
            vocab_size: number;
        };
        /**
         * ServedAttention
         * @description The attention of a layer, where GPUs divide it: `width` numbers of a token are kept for each key/value head, or
         *     in all (`latent`); `window` as the cache sheds what is past it; `scored`: widths of q and of v together.
         */
        ServedAttention: {
            /** Chunked */
            chunked: boolean;
            /** Latent */
            latent: boolean;
            /** Num Heads */
            num_heads: number;
            /** Num Kv Heads */
            num_kv_heads: number;
            /** Scored */
            scored: number;
            /** Width */
            width: number;
            /** Window */
            window: number | null;
        };
        /**
         * ServedKind
         * @description Equal layers, where GPUs divide each of them. `whole` parameters stand on every GPU; `divided` are pairs: a
         *     matrix's parameters, and how often there is such a one; `per_kv_head` come with each key/value head. `forward`:
         *     of each feed-forward, its matrices' numbers and how often a token goes through one; `beside` are numbers of a token
         *     that stand beside these. `state`, `state32`: numbers kept for each text.
         */
        ServedKind: {
            attention: components["schemas"]["ServedAttention"] | null;
            /** Beside */
            beside: number;
            /** Divided */
            divided: [
                number,
                number
            ][];
            /** Forward */
            forward: [
                number,
                number
            ][];
            /** Per Kv Head */
            per_kv_head: number;
            /** State */
            state: number;
            /** State32 */
            state32: number;
            /** Whole */
            whole: number;
        };
        /**
         * ServedOutside
         * @description Parameters of no layer: those that stand on every GPU, and of each matrix those that are divided, beside the
         *     numbers of the table of words that another stage needs a copy of.
         */
        ServedOutside: {
            /** Divided */
            divided: [
                number,
                number
            ][];
            /** Whole */
            whole: number;
        };
        /**
         * Shown
         * @description One value of a cell's result: rows of a matrix, perhaps its first ones; `shape` is that of the whole matrix.
         *
         *     `as_map`: rows are query tokens, columns key tokens.
         */
        Shown: {
            /**
             * As Map
             * @default false
             */
            as_map: boolean;
            /** Column Labels */
            column_labels: string[];
            /** Label */
            label: string;
            /** Row Labels */
            row_labels: string[];
            /** Shape */
            shape: number[];
            /** Values */
            values: (number | null)[][];
            /** Words */
            words: string;
        };
        /**
         * SizeAsk
         * @description A preset or a model of the workspace by name, or a description in words; then what differs from it.
         */
        SizeAsk: {
            /**
             * Batch
             * @default 8
             */
            batch: number;
            /** Cache Dtype */
            cache_dtype?: string | null;
            /** Context */
            context?: number | null;
            /**
             * Dtype
             * @default fp16
             */
            dtype: string;
            /** Model */
            model?: string | null;
            /** Num Kv Heads */
            num_kv_heads?: number | null;
            /** Preset */
            preset?: string | null;
            /** Words */
            words?: {
                [key: string]: number | boolean | string;
            } | null;
        };
        /**
         * SizeLayer
         * @description One layer's parameters: by part, and as sums over attention, the feed-forward part and the rest.
         */
        SizeLayer: {
            /** Attention */
            attention: number;
            /** Feed Forward */
            feed_forward: number;
            /** Index */
            index: number;
            /** Kind */
            kind: string;
            /** Other */
            other: number;
            /** Parts */
            parts: {
                [key: string]: number;
            };
        };
        /**
         * SizePreset
         * @description An architecture by name. `words`: its description for the sliders, null where no words describe it exactly.
         */
        SizePreset: {
            /** Name */
            name: string;
            /** Note */
            note: string;
            /** Source */
            source: string;
            /** Title */
            title: string;
            /** Words */
            words: {
                [key: string]: number | boolean | string | null;
            } | null;
        };
        /**
         * SizeReport
         * @description `document` is the output of `manyheads size --json`; the rest is ready to draw. Bytes are exact; GiB is 2^30.
         */
        SizeReport: {
            /** Cache Bytes */
            cache_bytes: number | null;
            /** Document */
            document: {
                [key: string]: unknown;
            };
            /** Layers */
            layers: components["schemas"]["SizeLayer"][];
            /** Lines */
            lines: components["schemas"]["CacheLine"][];
            /** Name */
            name: string;
            /** Notes */
            notes: string[];
            /** Num Parameters */
            num_parameters: number;
            /** Parts */
            parts: {
                [key: string]: number;
            };
            shape: components["schemas"]["SizeShape"];
            /** Weight Bytes */
            weight_bytes: number;
        };
        /**
         * SizeShape
         * @description All that the page needs to size an architecture at any context, batch and dtype: sums of products of these.
         *
         *     `positions`: what it is made for, a limit where `learned_positions`. `num_tokens`: of a text that always has so
         *     many, `num_source` the same of what an encoder reads. `state`: numbers kept for each text however long, `state32`
         *     those of 32 bits. `num_heads`, `num_kv_heads`: of every layer, and `terms` are of one key/value head; null for
         *     latents, for heads that differ and where nothing is kept: then `variants` has what there is. `num_idle`: parameters
         *     of the experts that a token does not go through. `served`: how GPUs divide it; null for what is not a decoder of one
         *     stack, or cannot be told.
         */
        SizeShape: {
            /** Kinds */
            kinds: components["schemas"]["LayerKind"][];
            /** Learned Positions */
            learned_positions: boolean;
            /** Notes */
            notes: string[];
            /** Num Heads */
            num_heads: number | null;
            /** Num Idle */
            num_idle: number;
            /** Num Kv Heads */
            num_kv_heads: number | null;
            /** Num Source */
            num_source: number | null;
            /** Num Tokens */
            num_tokens: number | null;
            /** Outside */
            outside: {
                [key: string]: number;
            };
            /** Positions */
            positions: number | null;
            served: components["schemas"]["Served"] | null;
            /** State */
            state: number;
            /** State32 */
            state32: number;
            /** Terms */
            terms: components["schemas"]["CacheTerm"][];
            /** Variants */
            variants: components["schemas"]["CacheShape"][];
        };
        /**
         * SkipPositionsStep
         * @description Takes the model's positions away.
         */
        SkipPositionsStep: {
            /**
             * @description discriminator enum property added by openapi-typescript
             * @enum {string}
             */
            step: "skip_positions";
        };
        /**
         * SkipStep
         * @description Leaves out a layer's output projection. `layer` as in "L3" or "L*".
         */
        SkipStep: {
            /** Layer */
            layer: string;
            /**
             * @description discriminator enum property added by openapi-typescript
             * @enum {string}
             */
            step: "skip_output_projection";
        };
        /** SmallestAsk */
        SmallestAsk: {
            /** Clean */
            clean: string;
            /** Corrupted */
            corrupted: string;
            /**
             * Keep
             * @default 0.9
             */
            keep: number;
            /** Model */
            model: string;
            /**
             * Right
             * @default
             */
            right: string;
            /**
             * Wrong
             * @default
             */
            wrong: string;
        };
        /**
         * StatisticInfo
         * @description The definition of a statistic, for a legend; `source` cites the formula's variant.
         */
        StatisticInfo: {
            /** High */
            high: number | null;
            /** Low */
            low: number | null;
            /** Meaning */
            meaning: string;
            /** Name */
            name: string;
            /** Source */
            source: string;
            /** Title */
            title: string;
            /** Unit */
            unit: string;
        };
        /**
         * Swap
         * @description What one word's looks become when another word is changed; see `manyheads.measurement` WordSwap.
         *
         *     `query`, `place`: numbers of the word that asks and of the changed one among `words`; `begins`: each word's first
         *     token. `links`: the words that the sentence is about. `beside`: the head of the last row, where that was not asked
         *     for. `after_recording` can be opened like any other.
         */
        Swap: {
            /** After Recording */
            after_recording: string;
            /** Begins */
            begins: number[];
            /** Beside */
            beside: string | null;
            /** Figures */
            figures: string;
            /**
             * Linked
             * @description what the first head does before the change, in a sentence
             */
            linked: string;
            /** Links */
            links: number[];
            /** New */
            new: string;
            /** Place */
            place: number;
            /** Query */
            query: number;
            /** Recording */
            recording: string;
            /** Rows */
            rows: components["schemas"]["SwapRow"][];
            /** Said */
            said: string;
            /** Special */
            special: boolean[];
            /** Text */
            text: string;
            /** Words */
            words: string[];
        };
        /**
         * SwapAsk
         * @description One word of a recording's text changed. `at`, `query`: tokens of that word, and of the one that asks.
         */
        SwapAsk: {
            /** At */
            at: number;
            /** Heads */
            heads: string[];
            /** Query */
            query: number;
            /** Word */
            word: string;
        };
        /**
         * SwapRow
         * @description One head's row of the asking word: the share of each word, before and after.
         */
        SwapRow: {
            /** After */
            after: number[];
            /** Before */
            before: number[];
            /** Head */
            head: string;
        };
        /**
         * TellingLink
         * @description The head to begin with on a text, and the two words that it links: the first token of each, and the weight.
         */
        TellingLink: {
            /** Head */
            head: string;
            /** Key */
            key: number;
            /** Query */
            query: number;
            /** Weight */
            weight: number;
        };
        /**
         * Token
         * @description A token. `piece` is the tokenizer's; `text` the characters of the input that it covers ("" for none).
         *
         *     `label` is the token as people read it, without the vocabulary's marks: "the" and not "Ġthe", a line break as "↵".
         *     `unknown`: the tokenizer has no piece for that text, and the model reads the same token for every such text.
         *     `span`: its characters in the whole input text; null where that is not known.
         */
        Token: {
            /** Label */
            label: string;
            /** Piece */
            piece: string;
            /** Sink */
            sink: boolean;
            /** Span */
            span?: [
                number,
                number
            ] | null;
            /** Special */
            special: boolean;
            /** Text */
            text: string;
            /**
             * Unknown
             * @default false
             */
            unknown: boolean;
        };
        /**
         * Trained
         * @description What becomes of nets that are *trained* as a scene has it: the first of `ways` is the one to compare with.
         *
         *     From the stored report of a whole run of a training preset; `ways` is empty where `words` say that none was trained.
         */
        Trained: {
            /**
             * Scene
             * @enum {string}
             */
            scene: "same" | "unmixed" | "one" | "half" | "positions";
            /** Source */
            source: string;
            /** Ways */
            ways: components["schemas"]["TrainedWay"][];
            /** Words */
            words: string;
        };
        /**
         * TrainedWay
         * @description One way to train or run small nets, over seeds: the share of places at which all answers are right, its standard
         *     deviation, and the diversity of the heads' maps, null where that was not measured.
         */
        TrainedWay: {
            /** Diversity */
            diversity: number | null;
            /** Right */
            right: number;
            /** Right Sd */
            right_sd: number;
            /** Words */
            words: string;
        };
        /** ValidationError */
        ValidationError: {
            /** Context */
            ctx?: Record<string, never>;
            /** Input */
            input?: unknown;
            /** Location */
            loc: (string | number)[];
            /** Message */
            msg: string;
            /** Error Type */
            type: string;
        };
        /**
         * Verdict
         * @description `answered`: whether it was an answer at all, right or wrong; what was none costs nothing.
         *
         *     `solution`: the right answer with its reason, once no try is left; else "".
         */
        Verdict: {
            /**
             * Answered
             * @default true
             */
            answered: boolean;
            /** Points */
            points: number;
            /** Right */
            right: boolean;
            /**
             * Solution
             * @default
             */
            solution: string;
            /** Words */
            words: string;
        };
        /**
         * WhyAnswer
         * @description Why a head looks from one token to another: the log-odds of that weight, split over what was written.
         *
         *     `log_odds` is `written` plus every share of `rows`. `query`, `key`: the writers of either side, largest share first.
         *     `said`: the answer in one sentence; `caution`: what to know before it is believed, "" for nothing; `lines`: the
         *     answer as the library prints it. `is_story`: whether the weight is large enough to be explained at all.
         */
        WhyAnswer: {
            /** @description the one rival; null for all other keys together */
            against: components["schemas"]["WhyLook"] | null;
            /** Caution */
            caution: string;
            /** Command */
            command: string;
            /** Error */
            error: number;
            /** Head */
            head: string;
            /** Is Story */
            is_story: boolean;
            /** Key */
            key: components["schemas"]["WhyWriter"][];
            key_token: components["schemas"]["WhyLook"];
            /** Lines */
            lines: string[];
            /** Log Odds */
            log_odds: number;
            /**
             * Next
             * @description the row's other keys with the largest weights
             */
            next: components["schemas"]["WhyLook"][];
            /** Num Pairs */
            num_pairs: number;
            /** Pairs */
            pairs: components["schemas"]["WhyPair"][];
            /** Query */
            query: components["schemas"]["WhyWriter"][];
            query_token: components["schemas"]["WhyPlace"];
            /** Rows */
            rows: components["schemas"]["WhyRow"][];
            /** Said */
            said: string;
            /** Weight */
            weight: number;
            /** Written */
            written: number;
        };
        /**
         * WhyLook
         * @description A token, and the weight that a head gives it.
         */
        WhyLook: {
            /** Position */
            position: number;
            /** Token */
            token: string;
            /** Weight */
            weight: number;
        };
        /**
         * WhyPair
         * @description What a query's writer and a key's writer gave together; `of_all`: of all pairs, added without signs.
         */
        WhyPair: {
            /** Key */
            key: string;
            /** Of All */
            of_all: number;
            /** Query */
            query: string;
            /** Share */
            share: number;
        };
        /**
         * WhyPlace
         * @description A token, by position and as it stands in the text.
         */
        WhyPlace: {
            /** Position */
            position: number;
            /** Token */
            token: string;
        };
        /**
         * WhyRow
         * @description A part of the log-odds that no writer has: the spread over other keys, a sink, a softcap, rounding.
         */
        WhyRow: {
            /** Name */
            name: string;
            /** Share */
            share: number;
            /** Words */
            words: string;
        };
        /**
         * WhyWriter
         * @description What one writer gave one side of a weight; see `manyheads.circuits.why` WriterShare.
         *
         *     `share`: of the log-odds, in nats; shares of a side add up to `written`. `without`: what the weight would be without
         *     it; these do not add up. `looks_at`: where a head looks most itself, from the token where it wrote.
         */
        WhyWriter: {
            /**
             * At Rivals
             * @description the part of the share that was written at other keys; null for the query
             */
            at_rivals: number | null;
            /** Kind */
            kind: string;
            looks_at: components["schemas"]["WhyLook"] | null;
            /** Share */
            share: number;
            /** Without */
            without: number;
            /** Writer */
            writer: string;
        };
        /**
         * WordInfo
         * @description A word: its text, and its tokens from `begin` up to but not including `end`.
         */
        WordInfo: {
            /** Begin */
            begin: number;
            /** End */
            end: number;
            /** Text */
            text: string;
        };
        /**
         * Workspace
         * @description What can be opened. `can_write`: whether there is a `folder` into which pruned checkpoints may be written.
         *
         *     `num_histories`: how many watched trainings there are.
         */
        Workspace: {
            /** Can Write */
            can_write: boolean;
            /** Default Model */
            default_model: string | null;
            /** Default Text */
            default_text: string;
            /** Files */
            files: components["schemas"]["FileEntry"][];
            /** Folder */
            folder: string;
            limits: components["schemas"]["Limits"];
            /** Models */
            models: components["schemas"]["ModelEntry"][];
            /**
             * Num Histories
             * @default 0
             */
            num_histories: number;
            /**
             * Opened
             * @description the recording that the command line named, opened first
             */
            opened: string | null;
            /** Version */
            version: string;
        };
        /**
         * Worth
         * @description The effect of ablating one head on this text; its fields mean the same as in `Experiment`.
         */
        Worth: {
            /** Change */
            change: number;
            /** Control */
            control: number[];
            /** Head */
            head: string;
            /** Kind */
            kind: string;
            /** Metric */
            metric: string;
            /** Notes */
            notes: {
                [key: string]: string;
            };
            /** Recording */
            recording: string;
            /** Unit */
            unit: string;
            verdict: components["schemas"]["EffectVerdict"];
            /** Words */
            words: string;
        };
    };
    responses: never;
    parameters: never;
    requestBodies: never;
    headers: never;
    pathItems: never;
}
export type $defs = Record<string, never>;
export interface operations {
    circuit_alone: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["AloneAsk"];
            };
        };
        responses: {
            /** @description Successful Response */
            202: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Job"];
                };
            };
            /** @description Bad Request */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Forbidden */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Not Found */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Conflict */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Request Entity Too Large */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Validation Error */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["HTTPValidationError"];
                };
            };
            /** @description Internal Server Error */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Service Unavailable */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
    patch_heads: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["PatchAsk"];
            };
        };
        responses: {
            /** @description Successful Response */
            202: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Job"];
                };
            };
            /** @description Bad Request */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Forbidden */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Not Found */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Conflict */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Request Entity Too Large */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Validation Error */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["HTTPValidationError"];
                };
            };
            /** @description Internal Server Error */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Service Unavailable */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
    read_pair: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["PairAsk"];
            };
        };
        responses: {
            /** @description Successful Response */
            202: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Job"];
                };
            };
            /** @description Bad Request */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Forbidden */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Not Found */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Conflict */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Request Entity Too Large */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Validation Error */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["HTTPValidationError"];
                };
            };
            /** @description Internal Server Error */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Service Unavailable */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
    head_paths: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["OneHeadAsk"];
            };
        };
        responses: {
            /** @description Successful Response */
            202: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Job"];
                };
            };
            /** @description Bad Request */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Forbidden */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Not Found */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Conflict */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Request Entity Too Large */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Validation Error */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["HTTPValidationError"];
                };
            };
            /** @description Internal Server Error */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Service Unavailable */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
    smallest_circuit: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["SmallestAsk"];
            };
        };
        responses: {
            /** @description Successful Response */
            202: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Job"];
                };
            };
            /** @description Bad Request */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Forbidden */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Not Found */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Conflict */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Request Entity Too Large */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Validation Error */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["HTTPValidationError"];
                };
            };
            /** @description Internal Server Error */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Service Unavailable */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
    head_writing: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["OneHeadAsk"];
            };
        };
        responses: {
            /** @description Successful Response */
            202: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Job"];
                };
            };
            /** @description Bad Request */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Forbidden */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Not Found */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Conflict */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Request Entity Too Large */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Validation Error */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["HTTPValidationError"];
                };
            };
            /** @description Internal Server Error */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Service Unavailable */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
    run_experiment: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["ExperimentAsk"];
            };
        };
        responses: {
            /** @description Successful Response */
            202: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Job"];
                };
            };
            /** @description Bad Request */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Forbidden */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Not Found */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Conflict */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Request Entity Too Large */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Validation Error */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["HTTPValidationError"];
                };
            };
            /** @description Internal Server Error */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Service Unavailable */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
    blend_heads: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["BlendAsk"];
            };
        };
        responses: {
            /** @description Successful Response */
            202: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Job"];
                };
            };
            /** @description Bad Request */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Forbidden */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Not Found */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Conflict */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Request Entity Too Large */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Validation Error */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["HTTPValidationError"];
                };
            };
            /** @description Internal Server Error */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Service Unavailable */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
    experiment: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                experiment: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Experiment"];
                };
            };
            /** @description Bad Request */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Forbidden */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Not Found */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Conflict */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Request Entity Too Large */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Validation Error */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["HTTPValidationError"];
                };
            };
            /** @description Internal Server Error */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Service Unavailable */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
    histories: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["HistoryEntry"][];
                };
            };
            /** @description Bad Request */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Forbidden */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Not Found */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Conflict */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Request Entity Too Large */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Internal Server Error */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Service Unavailable */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
    history: {
        parameters: {
            query?: {
                seen?: string;
                wait?: number;
            };
            header?: never;
            path: {
                history: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["History"];
                };
            };
            /** @description Bad Request */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Forbidden */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Not Found */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Conflict */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Request Entity Too Large */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Validation Error */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["HTTPValidationError"];
                };
            };
            /** @description Internal Server Error */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Service Unavailable */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
    history_curves: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                history: string;
                statistic: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/vnd.manyheads.arrays": string;
                };
            };
            /** @description Bad Request */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Forbidden */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Not Found */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Conflict */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Request Entity Too Large */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Validation Error */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["HTTPValidationError"];
                };
            };
            /** @description Internal Server Error */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Service Unavailable */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
    history_head: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                history: string;
                head: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/vnd.manyheads.arrays": string;
                };
            };
            /** @description Bad Request */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Forbidden */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Not Found */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Conflict */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Request Entity Too Large */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Validation Error */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["HTTPValidationError"];
                };
            };
            /** @description Internal Server Error */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Service Unavailable */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
    job: {
        parameters: {
            query?: {
                wait?: number;
            };
            header?: never;
            path: {
                job: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Job"];
                };
            };
            /** @description Bad Request */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Forbidden */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Not Found */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Conflict */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Request Entity Too Large */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Validation Error */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["HTTPValidationError"];
                };
            };
            /** @description Internal Server Error */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Service Unavailable */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
    stop_job: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                job: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Job"];
                };
            };
            /** @description Bad Request */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Forbidden */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Not Found */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Conflict */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Request Entity Too Large */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Validation Error */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["HTTPValidationError"];
                };
            };
            /** @description Internal Server Error */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Service Unavailable */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
    lessons: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["LessonEntry"][];
                };
            };
            /** @description Bad Request */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Forbidden */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Not Found */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Conflict */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Request Entity Too Large */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Internal Server Error */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Service Unavailable */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
    lesson: {
        parameters: {
            query?: {
                seed?: number | null;
                language?: string;
            };
            header?: never;
            path: {
                slug: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Lesson"];
                };
            };
            /** @description Bad Request */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Forbidden */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Not Found */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Conflict */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Request Entity Too Large */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Validation Error */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["HTTPValidationError"];
                };
            };
            /** @description Internal Server Error */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Service Unavailable */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
    run_cell: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                slug: string;
                cell: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["CellAsk"];
            };
        };
        responses: {
            /** @description The `result` of the job, once it is done. */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["CellResult"];
                };
            };
            /** @description Successful Response */
            202: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Job"];
                };
            };
            /** @description Bad Request */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Forbidden */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Not Found */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Conflict */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Request Entity Too Large */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Validation Error */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["HTTPValidationError"];
                };
            };
            /** @description Internal Server Error */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Service Unavailable */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
    check: {
        parameters: {
            query?: {
                language?: string;
            };
            header?: never;
            path: {
                slug: string;
                check: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["CheckAsk"];
            };
        };
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Verdict"];
                };
            };
            /** @description Bad Request */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Forbidden */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Not Found */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Conflict */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Request Entity Too Large */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Validation Error */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["HTTPValidationError"];
                };
            };
            /** @description Internal Server Error */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Service Unavailable */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
    presets: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["SizePreset"][];
                };
            };
            /** @description Bad Request */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Forbidden */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Not Found */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Conflict */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Request Entity Too Large */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Internal Server Error */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Service Unavailable */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
    prune: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["PruningAsk"];
            };
        };
        responses: {
            /** @description Successful Response */
            202: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Job"];
                };
            };
            /** @description Bad Request */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Forbidden */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Not Found */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Conflict */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Request Entity Too Large */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Validation Error */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["HTTPValidationError"];
                };
            };
            /** @description Internal Server Error */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Service Unavailable */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
    open_recording: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["RecordingAsk"];
            };
        };
        responses: {
            /** @description Successful Response */
            202: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Job"];
                };
            };
            /** @description Bad Request */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Forbidden */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Not Found */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Conflict */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Request Entity Too Large */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Validation Error */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["HTTPValidationError"];
                };
            };
            /** @description Internal Server Error */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Service Unavailable */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
    recording_info: {
        parameters: {
            query?: {
                text?: number;
            };
            header?: never;
            path: {
                recording: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["RecordingInfo"];
                };
            };
            /** @description Bad Request */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Forbidden */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Not Found */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Conflict */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Request Entity Too Large */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Validation Error */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["HTTPValidationError"];
                };
            };
            /** @description Internal Server Error */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Service Unavailable */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
    atlas: {
        parameters: {
            query?: {
                text?: number;
            };
            header?: never;
            path: {
                recording: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Atlas"];
                };
            };
            /** @description Bad Request */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Forbidden */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Not Found */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Conflict */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Request Entity Too Large */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Validation Error */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["HTTPValidationError"];
                };
            };
            /** @description Internal Server Error */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Service Unavailable */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
    head_card: {
        parameters: {
            query?: {
                text?: number;
            };
            header?: never;
            path: {
                recording: string;
                head: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["HeadCard"];
                };
            };
            /** @description Bad Request */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Forbidden */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Not Found */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Conflict */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Request Entity Too Large */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Validation Error */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["HTTPValidationError"];
                };
            };
            /** @description Internal Server Error */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Service Unavailable */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
    full_card: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                recording: string;
                head: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            202: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Job"];
                };
            };
            /** @description Bad Request */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Forbidden */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Not Found */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Conflict */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Request Entity Too Large */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Validation Error */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["HTTPValidationError"];
                };
            };
            /** @description Internal Server Error */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Service Unavailable */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
    head_worth: {
        parameters: {
            query?: {
                kind?: "zero" | "mean" | "resample" | "first" | "streaming";
                text?: number;
            };
            header?: never;
            path: {
                recording: string;
                head: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            202: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Job"];
                };
            };
            /** @description Bad Request */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Forbidden */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Not Found */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Conflict */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Request Entity Too Large */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Validation Error */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["HTTPValidationError"];
                };
            };
            /** @description Internal Server Error */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Service Unavailable */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
    find_importance: {
        parameters: {
            query?: {
                text?: number;
            };
            header?: never;
            path: {
                recording: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            202: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Job"];
                };
            };
            /** @description Bad Request */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Forbidden */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Not Found */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Conflict */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Request Entity Too Large */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Validation Error */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["HTTPValidationError"];
                };
            };
            /** @description Internal Server Error */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Service Unavailable */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
    pair: {
        parameters: {
            query?: {
                text?: number;
            };
            header?: never;
            path: {
                recording: string;
                head: string;
                query: number;
                key: number;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Pair"];
                };
            };
            /** @description Bad Request */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Forbidden */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Not Found */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Conflict */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Request Entity Too Large */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Validation Error */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["HTTPValidationError"];
                };
            };
            /** @description Internal Server Error */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Service Unavailable */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
    forward_pass: {
        parameters: {
            query?: {
                text?: number;
            };
            header?: never;
            path: {
                recording: string;
                token: number;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/vnd.manyheads.arrays": string;
                };
            };
            /** @description Bad Request */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Forbidden */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Not Found */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Conflict */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Request Entity Too Large */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Validation Error */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["HTTPValidationError"];
                };
            };
            /** @description Internal Server Error */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Service Unavailable */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
    find_roles: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                recording: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            202: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Job"];
                };
            };
            /** @description Bad Request */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Forbidden */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Not Found */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Conflict */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Request Entity Too Large */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Validation Error */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["HTTPValidationError"];
                };
            };
            /** @description Internal Server Error */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Service Unavailable */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
    map_row: {
        parameters: {
            query?: {
                text?: number;
            };
            header?: never;
            path: {
                recording: string;
                head: string;
                row: number;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/vnd.manyheads.arrays": string;
                };
            };
            /** @description Bad Request */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Forbidden */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Not Found */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Conflict */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Request Entity Too Large */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Validation Error */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["HTTPValidationError"];
                };
            };
            /** @description Internal Server Error */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Service Unavailable */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
    head_output: {
        parameters: {
            query?: {
                keys?: number;
                text?: number;
            };
            header?: never;
            path: {
                recording: string;
                head: string;
                query: number;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/vnd.manyheads.arrays": string;
                };
            };
            /** @description Bad Request */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Forbidden */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Not Found */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Conflict */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Request Entity Too Large */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Validation Error */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["HTTPValidationError"];
                };
            };
            /** @description Internal Server Error */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Service Unavailable */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
    swap_word: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                recording: string;
            };
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["SwapAsk"];
            };
        };
        responses: {
            /** @description Successful Response */
            202: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Job"];
                };
            };
            /** @description Bad Request */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Forbidden */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Not Found */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Conflict */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Request Entity Too Large */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Validation Error */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["HTTPValidationError"];
                };
            };
            /** @description Internal Server Error */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Service Unavailable */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
    table: {
        parameters: {
            query?: {
                format?: "csv" | "parquet" | "json";
                text?: number;
            };
            header?: never;
            path: {
                recording: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": Record<string, never>[];
                    "application/vnd.apache.parquet": string;
                    "text/csv": string;
                };
            };
            /** @description Bad Request */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Forbidden */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Not Found */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Conflict */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Request Entity Too Large */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Validation Error */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["HTTPValidationError"];
                };
            };
            /** @description Internal Server Error */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Service Unavailable */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
    thumbnails: {
        parameters: {
            query?: {
                size?: number;
                how?: "mean" | "max";
                text?: number;
            };
            header?: never;
            path: {
                recording: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/vnd.manyheads.arrays": string;
                };
            };
            /** @description Bad Request */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Forbidden */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Not Found */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Conflict */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Request Entity Too Large */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Validation Error */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["HTTPValidationError"];
                };
            };
            /** @description Internal Server Error */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Service Unavailable */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
    tile: {
        parameters: {
            query?: {
                how?: "mean" | "max";
                rows?: "auto" | "all";
                text?: number;
            };
            header?: never;
            path: {
                recording: string;
                head: string;
                level: number;
                column: number;
                row: number;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/vnd.manyheads.arrays": string;
                };
            };
            /** @description Bad Request */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Forbidden */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Not Found */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Conflict */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Request Entity Too Large */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Validation Error */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["HTTPValidationError"];
                };
            };
            /** @description Internal Server Error */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Service Unavailable */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
    why_there: {
        parameters: {
            query?: {
                against?: "rest" | number;
                text?: number;
            };
            header?: never;
            path: {
                recording: string;
                head: string;
                query: number;
                key: number;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["WhyAnswer"];
                };
            };
            /** @description Bad Request */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Forbidden */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Not Found */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Conflict */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Request Entity Too Large */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Validation Error */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["HTTPValidationError"];
                };
            };
            /** @description Internal Server Error */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Service Unavailable */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
    window: {
        parameters: {
            query?: {
                format?: "csv" | "parquet";
                queries?: string;
                keys?: string;
                text?: number;
            };
            header?: never;
            path: {
                recording: string;
                head: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": Record<string, never>[];
                    "application/vnd.apache.parquet": string;
                    "text/csv": string;
                };
            };
            /** @description Bad Request */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Forbidden */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Not Found */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Conflict */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Request Entity Too Large */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Validation Error */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["HTTPValidationError"];
                };
            };
            /** @description Internal Server Error */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Service Unavailable */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
    word_row: {
        parameters: {
            query?: {
                keys?: string;
                text?: number;
            };
            header?: never;
            path: {
                recording: string;
                query: number;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/vnd.manyheads.arrays": string;
                };
            };
            /** @description Bad Request */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Forbidden */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Not Found */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Conflict */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Request Entity Too Large */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Validation Error */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["HTTPValidationError"];
                };
            };
            /** @description Internal Server Error */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Service Unavailable */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
    size: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["SizeAsk"];
            };
        };
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["SizeReport"];
                };
            };
            /** @description Bad Request */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Forbidden */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Not Found */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Conflict */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Request Entity Too Large */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Validation Error */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["HTTPValidationError"];
                };
            };
            /** @description Internal Server Error */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Service Unavailable */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
    trained: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Trained"][];
                };
            };
            /** @description Bad Request */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Forbidden */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Not Found */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Conflict */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Request Entity Too Large */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Internal Server Error */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Service Unavailable */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
    take_in: {
        parameters: {
            query: {
                file_name: string;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/octet-stream": string;
            };
        };
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["FileEntry"];
                };
            };
            /** @description Bad Request */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Forbidden */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Not Found */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Conflict */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Request Entity Too Large */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Validation Error */
            422: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["HTTPValidationError"];
                };
            };
            /** @description Internal Server Error */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Service Unavailable */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
    workspace: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description Successful Response */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Workspace"];
                };
            };
            /** @description Bad Request */
            400: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Forbidden */
            403: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Not Found */
            404: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Conflict */
            409: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Request Entity Too Large */
            413: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Internal Server Error */
            500: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
            /** @description Service Unavailable */
            503: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Problem"];
                };
            };
        };
    };
}
