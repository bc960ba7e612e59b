//go:build man

package main

// The man pages and shell completions of packages. They have a build of their own, because the relay needs no renderer of man pages:
//
//	go run -tags man ./cmd/xds-relay man FOLDER

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

func init() {
	extra = append(extra, &cobra.Command{
		Use:    "man FOLDER",
		Short:  "Write man pages and shell completions",
		Hidden: true,
		Args:   usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			root := cmd.Root()
			root.DisableAutoGenTag = true // it has the date, and builds of one commit are the same
			pages, completions := filepath.Join(args[0], "man1"), filepath.Join(args[0], "completions")
			const folder = 0o755
			if err := errors.Join(os.MkdirAll(pages, folder), os.MkdirAll(completions, folder)); err != nil {
				return err
			}
			return errors.Join(
				doc.GenManTree(root, &doc.GenManHeader{Title: "XDS-RELAY", Section: "1", Source: "xds-relay", Manual: "xds-relay"}, pages),
				root.GenBashCompletionFileV2(filepath.Join(completions, "xds-relay.bash"), true),
				root.GenZshCompletionFile(filepath.Join(completions, "_xds-relay")),
				root.GenFishCompletionFile(filepath.Join(completions, "xds-relay.fish"), true),
			)
		},
	})
}
