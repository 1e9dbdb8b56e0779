// Package depth caches queue depths: of all queues for the metrics (AllQueues), and the number of ready jobs of queues
// that have a limit (ReadyLimits).
//
// It asks the database through functions and knows no other part of a pipeline.
package depth
