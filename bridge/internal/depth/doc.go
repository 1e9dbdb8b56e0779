// Package depth caches queue depths: of all queues for the metrics (AllQueues), and the number of ready jobs of
// queues that have a limit (ReadyLimits).
//
// It queries the database through functions and does not depend on other parts of a pipeline.
package depth
