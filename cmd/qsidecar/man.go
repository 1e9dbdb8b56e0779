package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/qsidecar/qsidecar/internal/manual"
)

// manCommand writes the manual pages and the reference page.
func (a *app) manCommand() *cobra.Command {
	var markdown bool
	cmd := &cobra.Command{
		Use: "man DIR", Hidden: true, Args: argCount(1, 1, "DIR"),
		Short: "Write the manual pages into a folder",
		Long: `Write a manual page for each command into DIR, which is created if it is missing:
qsidecar.1, qsidecar-work.1 and so on. Packages have them already. With --markdown, write
one page in Markdown instead, DIR/cli.md.

Exit codes: 0 written, 1 a file could not be written, 2 wrong arguments.`,
		Example: `  qsidecar man ~/.local/share/man/man1 && man qsidecar`,
		RunE: func(_ *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return fmt.Errorf("the manual pages' folder: %w", err)
			}
			root, v := a.root(), programVersion()
			pages := map[string]string{"cli.md": manual.Markdown(root)}
			if !markdown {
				date, _, _ := strings.Cut(v.Time, "T")
				pages = manual.Pages(root, v.Number, date)
			}
			for name, text := range pages {
				if err := os.WriteFile(filepath.Join(args[0], name), []byte(text), 0o644); err != nil {
					return fmt.Errorf("a manual page: %w", err)
				}
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&markdown, "markdown", false, "write one page in Markdown")
	return cmd
}
