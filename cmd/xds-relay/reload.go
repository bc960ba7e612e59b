package main

// `xds-relay reload` makes running relays load their configuration again.

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/xds-relay/xds-relay/operator"
)

func newReloadCommand() *cobra.Command {
	var q adminQuery
	cmd := &cobra.Command{
		Use:   "reload [--admin HOST:PORT]...",
		Short: "Make a running relay load its configuration again",
		Long: `Make a running relay load its configuration again, as SIGHUP does, and wait until the new one runs. If it
has an error, the relay keeps the old one, and the command prints the error. xds-relay check --against shows
before what a file would change.

Exit status:
  0  every relay runs the configuration of its file
  1  a relay would not load it, or was started without a file
  2  the command line is wrong
  3  there was no answer from an admin listener`,
		Example: "  xds-relay reload\n  xds-relay reload --admin relay-1:19000 --admin relay-2:19000",
		Args:    usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := q.check(); err != nil {
				return err
			}
			worst := 0
			documents := []*reloaded{}
			for _, address := range q.all() {
				r, err := q.reload(cmd, address)
				if err != nil {
					fmt.Fprintf(cmd.ErrOrStderr(), "%s: %v\n", address, err)
					worst = max(worst, err.status)
					continue
				}
				documents = append(documents, r)
				if q.output == "text" {
					fmt.Fprintln(cmd.OutOrStdout(), r)
				}
			}
			if q.output == "json" {
				if err := printJSON(cmd.OutOrStdout(), documents); err != nil {
					return err
				}
			}
			if worst > 0 {
				return &exitError{status: worst}
			}
			return nil
		},
	}
	q.register(cmd)
	forSeveral(cmd.Flags())
	return cmd
}

// reloaded is the result of a reload.
type reloaded struct {
	Relay  string                `json:"relay"`
	Before operator.ConfigStatus `json:"before"`
	Now    operator.ConfigStatus `json:"now"`
}

// String implements fmt.Stringer.
func (r *reloaded) String() string {
	if r.Before.Hash == r.Now.Hash {
		return fmt.Sprintf("%s: reloaded; the configuration is the same as before, %s", r.Relay, r.Now.Hash)
	}
	return fmt.Sprintf("%s: reloaded; configuration %s runs, and %s did before", r.Relay, r.Now.Hash, r.Before.Hash)
}

// reload reloads one relay.
func (q *adminQuery) reload(cmd *cobra.Command, address string) (*reloaded, *exitError) {
	r := &reloaded{Relay: address}
	err := q.doAt(cmd.Context(), address, http.MethodGet, "/config", url.Values{}, &r.Before)
	if err == nil {
		err = q.doAt(cmd.Context(), address, http.MethodPost, "/reload", url.Values{}, &r.Now)
	}
	if err == nil {
		return r, nil
	}
	failed := &exitError{status: statusFailed, err: err}
	errors.As(err, &failed)
	if failed.status == statusUsage && r.Before.Hash != "" {
		failed = &exitError{status: statusNotAll, err: failed.err} // the relay has not taken the configuration
	}
	return nil, failed
}
