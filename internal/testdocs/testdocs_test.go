package testdocs

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestDocumented(t *testing.T) {
	t.Parallel()
	page := filepath.Join(t.TempDir(), "page.md")
	if err := os.WriteFile(page, []byte("# Page\n```sql\nzero\n```\n## One\n```sql\na\nb\n```\n```yaml\nc\n```\n### Deeper\n```sql\nd\n```\n## Two\n```sql\ne\n```\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"a\nb\n", "d\n"}, CodeBlocks(t, page, "## One", "sql")); diff != "" {
		t.Error(diff)
	}
}
