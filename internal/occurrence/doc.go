// Package occurrence computes when a schedule runs. It is pure: it has no clock, and reads no file.
//
// The day and the time of a cron expression are those of a clock on the wall in the schedule's time zone. A library parses the
// expression and finds the next time on a wall clock without daylight saving time. This package turns that into an instant:
// a time that the clock passes over runs once right after it, except if the expression runs in each hour. Of an hour that the clock repeats, fixed times run once, at the
// first of the two, and intervals run each time. An interval has a minute or an hour that begins with *, as in Vixie cron.
//
// # Why netresearch/go-cron
//
// Four libraries were compared in November 2026, with 40 expressions and the changes of Europe/Berlin. "DST" is what
// `30 2 * * *` does when the hour is skipped, and when it is repeated.
//
//	library                 last release  names L L-3 LW 15W FRI#3 last-Friday  0-7  DST                     errors
//	netresearch/go-cron     2026-01       yes   yes yes yes yes yes  FRI#L      yes  03:30; runs twice       name the value and the range
//	adhocore/gronx          2026-09       yes   yes no  no  yes yes  5L         yes  skips a day; once       some only at the search ("tried so hard")
//	hashicorp/cronexpr      2025-08       yes   yes no  yes yes yes  5L         yes  skips a day; twice      "syntax error in minute field"
//	robfig/cron/v3          2020-01       yes   no  no  no  no  no   no         no   skips a day; twice      name the value and the range
//
// None does with a change of the clock what a schedule promises, so each would be used on a clock without changes, and what
// counts is the parser. That of go-cron has the most forms and the best errors, and a fixed number of fields: gronx and cronexpr take a
// sixth field for seconds or for a year. robfig/cron, from which go-cron was forked, has no release since 2020.
//
// Start reading at Parse.
package occurrence
