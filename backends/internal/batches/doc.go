// Package batches keeps batches in three tables, once for all SQL engines.
//
// qsidecar_batches has a row for each batch, qsidecar_batch_members one for each member of a batch that has not ended, and
// qsidecar_batch_notes the batches of which members ended. A member's row has a mark if its job is done, because that job can be
// gone. All else follows from the row of the job: it is unfinished, or dead, or gone and so failed. So nothing is counted in a
// column, and it doesn't matter how a job ended.
//
// A transaction that adds members writes the batch's row first (Enter). So does the one that ends the batch (Table.end), which
// counts the members in its next statement. So members are added before the count, or they find that the batch has ended. Of two
// sidecars that end a batch, the second one finds that it has ended.
//
// A transaction in which a job of a batch ends stores a note, and the sidecar then tries to end the batch. If it dies before that,
// maintenance does, here or elsewhere: Table.ResolveBatches reads notes, then finds out which batches can end, and then
// deletes the notes that it read. A member that ends later stores a later note. It also walks over all closed batches, step by step, and so finds
// what ended without a note: deleted and pruned jobs, and those that a statement of another program changed.
//
// The memory backend uses rules.go too. Start reading at Table.ResolveBatches.
package batches
