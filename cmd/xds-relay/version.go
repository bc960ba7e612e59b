package main

import (
	"fmt"
	"net/http"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/xds-relay/xds-relay/operator"
)

func newVersionCommand() *cobra.Command {
	var q adminQuery
	cmd := &cobra.Command{
		Use:   "version [--admin HOST:PORT]...",
		Short: "Print the version of this program, or of running relays",
		Long: `Print the version of this program: its version, the commit and the Go release that built it.
With --admin, print those of running relays, with the host of each.`,
		Example: "  xds-relay version\n  xds-relay version --admin relay-1:19000 --admin relay-2:19000",
		Args:    usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := q.check(); err != nil {
				return err
			}
			builds := []operator.BuildInfo{operator.Build()}
			if cmd.Flags().Changed("admin") {
				builds = nil
				for _, address := range q.all() {
					var b operator.BuildInfo
					if err := q.doAt(cmd.Context(), address, http.MethodGet, "/version", url.Values{}, &b); err != nil {
						return err
					}
					builds = append(builds, b)
				}
			}
			if q.output == "json" {
				return printJSON(cmd.OutOrStdout(), builds)
			}
			for _, b := range builds {
				host := ""
				if cmd.Flags().Changed("admin") {
					host = " on " + oneLine(b.Host)
				}
				fmt.Fprintf(cmd.OutOrStdout(), "xds-relay %s%s\n", b, host)
			}
			return nil
		},
	}
	q.register(cmd)
	forSeveral(cmd.Flags())
	return cmd
}
