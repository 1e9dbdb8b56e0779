package core

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
)

func TestDescription(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var d Description
		readings := 0
		refresh := func(text string, err error) {
			d.Refresh(t.Context(), func(context.Context) (string, error) { readings++; return text, err })
			synctest.Wait()
		}
		d.Read(t.Context(), func(context.Context) (string, error) { return "primary of 2", nil })
		refresh("too early", nil)
		Pause(t.Context(), 2*describeEvery)
		refresh("", errors.New("unreachable"))
		if d.Text() != "primary of 2" || readings != 1 {
			t.Errorf("the text is %q after %d further readings, want the earlier one after 1", d.Text(), readings)
		}
		refresh("too early", nil)
		d.Expire()
		refresh("primary of 3", nil)
		d.Close()
		d.Expire()
		refresh("closed", nil)
		if d.Text() != "primary of 3" || readings != 2 {
			t.Errorf("the text is %q after %d further readings, want the last one before the end after 2", d.Text(), readings)
		}
	})
}
