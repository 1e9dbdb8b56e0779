package sqlite

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// TestSchedulesOfALaterProgram: schedules that this program can't read stop none of the others, however many they are.
func TestSchedulesOfALaterProgram(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "jobs.db"))
	for i := range backends.ScheduleBatch + 1 {
		if _, err := s.DeclareSchedule(t.Context(), backends.Schedule{Name: fmt.Sprintf("s%02d", i), Queue: "q", Every: time.Hour}, false); err != nil {
			t.Fatal(err)
		}
	}
	last := fmt.Sprintf("s%02d", backends.ScheduleBatch)
	if err := exec(t, s, "UPDATE qsidecar_schedules SET next_at = 1, cron = CASE WHEN name = '"+last+"' THEN NULL ELSE 'at dawn' END, every_ms = CASE WHEN name = '"+last+"' THEN every_ms END"); err != nil {
		t.Fatal(err)
	}
	r, err := s.FireSchedules(t.Context(), nil)
	if err != nil || len(r.Fired) != 1 || r.Fired[0].Name != last {
		t.Errorf("fired %+v, %v", r, err)
	}
}
