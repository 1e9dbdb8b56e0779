// Package leasestring formats and parses the lease strings that clients get.
//
// A lease string is `1.DATABASE.TOKEN.JOB`, all of [A-Za-z0-9._-]:
//
//   - 1: the version of this form
//   - DATABASE: the random id that the database keeps
//   - TOKEN: the sidecar's identity and the claim's number, 16 bytes big-endian, as base64url
//   - JOB: the job's id. An id that is not all digits is written as `_` and its base64url
//
// It is self-contained. Any sidecar of the database can settle it, even one that started after the claim.
package leasestring
