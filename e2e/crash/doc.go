// Package crash kills workers, sidecars and database servers, and checks that no job is lost
// and none is delivered without a reason.
package crash
