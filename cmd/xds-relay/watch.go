package main

// `xds-relay watch` prints changes of resources.

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/xds-relay/xds-relay/client"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

func newWatchCommand() *cobra.Command {
	query := queryFlags{print: printFlags{differences: true}}
	cmd := &cobra.Command{
		Use:   "watch [--server HOST:PORT] --type TYPE [NAME...]",
		Short: "Subscribe to resources of an xDS server, and print every change",
		Long: `Subscribe to resources of an xDS server, and print each resource when it is added, changed
or removed, with the time, until Ctrl-C. When the stream is lost, watch reconnects and
prints the changes since.

Types: ` + xdstype.Words() + `,
or a type URL. With xdstp names, which contain their type, --type is optional.

Changes go to standard output: as YAML documents below a comment with the change, as one
JSON object per line, with --output diff as the difference from the state before, or with
--output name as lines of text.
Everything else goes to standard error.

Exit status:
  0  Ctrl-C
  2  the command line is wrong
  3  the server can never answer, or the output could not be written`,
		Example: `  xds-relay watch --type endpoint backend
  xds-relay watch --type cluster -o name
  xds-relay watch --type cluster -o json | jq -r '.time + " " + .change + " " + .name'`,
		RunE: func(cmd *cobra.Command, names []string) error {
			server, requested, err := query.parse(names)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithCancel(cmd.Context())
			defer cancel()
			out := query.print.printer(cmd.OutOrStdout())
			err = client.Watch(ctx, server, requested, func(e client.Event) {
				if _, ok := changes[e.Kind]; ok {
					out.change(e, requested.TypeURL, time.Now())
				} else {
					fmt.Fprintln(cmd.ErrOrStderr(), describe(e, server, requested))
				}
				if out.err != nil {
					cancel()
				}
			})
			if err == nil {
				err = out.err
			}
			if err != nil {
				return &exitError{status: statusFailed, err: err}
			}
			return nil
		},
	}
	query.register(cmd.Flags())
	return cmd
}

// describe returns the line for an event other than a change.
func describe(e client.Event, server client.Server, requested client.Query) string {
	word := xdstype.Word(requested.TypeURL)
	switch e.Kind {
	case client.Connected:
		return "connected to " + server.Address
	case client.Disconnected:
		return fmt.Sprintf("%v; trying again in %v", e.Err, e.Retry.Round(100*time.Millisecond))
	case client.Missing:
		return doesNotExist(word, client.NameError{Name: e.Name, Err: e.Err})
	case client.Failed:
		return fmt.Sprintf("%s %q: %v", word, e.Name, e.Err)
	case client.Rejected:
		if e.Name == "" {
			return fmt.Sprintf("rejected: %v", e.Err)
		}
		return fmt.Sprintf("rejected: %s %q: %v", word, e.Name, e.Err)
	case client.Unrequested:
		return fmt.Sprintf("the server also sends resources that were not requested, such as %s %q; they are not shown", word, e.Name)
	}
	return fmt.Sprintf("%s %q: unknown event %d", word, e.Name, e.Kind)
}
