package main

// `xds-relay rollout` shows rollouts, and acts on them, over the admin listener.

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/xds-relay/xds-relay/operator"
)

// rolloutFlags are the flags of all subcommands.
type rolloutFlags struct {
	operatorFlags
	authority, partition string
}

func (f *rolloutFlags) register(flags *pflag.FlagSet) {
	f.operatorFlags.register(flags)
	f.registerLocal(flags)
	flags.StringVar(&f.authority, "authority", "", "only rollouts of this `AUTHORITY` (default all)")
	flags.StringVar(&f.partition, "partition", "", "only rollouts of this `PARTITION` (default all)")
}

func newRolloutCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rollout",
		Short: "Show rollouts, approve, reject, freeze and thaw them",
		Long: `Show the rollouts of a running relay, and act on them, over its admin listener. The relay logs
who did what.

Without --authority and --partition, the command is for all rollouts of the relay.

Exit status:
  0  there are rollouts; for approve, reject and trust, there was something to act on
  1  there is none, or nothing to act on
  2  the command line is wrong
  3  there was no answer from the admin listener`,
		Args: usageArgs(func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("unknown command %q (want status, approve, reject, freeze, thaw or trust)", args[0])
			}
			return nil
		}),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return usageError(errors.New("want status, approve, reject, freeze, thaw or trust"))
		},
	}
	cmd.AddCommand(newRolloutStatusCommand(),
		newRolloutActionCommand("approve", "All clients get the change at once", "there was nothing to approve"),
		newRolloutActionCommand("reject", "Give clients the accepted state again, and send the control plane a NACK", "there was nothing to reject"),
		newRolloutActionCommand("freeze", "Send no change to further clients, until thaw", ""),
		newRolloutActionCommand("thaw", "End a freeze", ""),
		newRolloutActionCommand("trust", "Count rejections again of clients that are passed over", "no client is passed over"))
	return cmd
}

func newRolloutStatusCommand() *cobra.Command {
	var f rolloutFlags
	var output string
	cmd := &cobra.Command{
		Use:     "status [--admin HOST:PORT] [--authority A] [--partition P]",
		Short:   "Show rollouts",
		Example: "  xds-relay rollout status\n  xds-relay rollout status --authority cp.example.com -o json",
		Args:    usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "text" && output != "json" {
				return usageError(fmt.Errorf("--output %s: want text or json", output))
			}
			values, err := f.values(cmd.Flags())
			if err != nil {
				return err
			}
			var all []operator.RolloutStatus
			if err := f.do(cmd.Context(), http.MethodGet, "/rollouts", values, &all); err != nil {
				return err
			}
			if output == "json" {
				if err := printJSON(cmd.OutOrStdout(), all); err != nil {
					return err
				}
			} else {
				for _, s := range all {
					printRollout(cmd.OutOrStdout(), s)
				}
			}
			if len(all) == 0 {
				fmt.Fprintln(cmd.ErrOrStderr(), "there is no rollout: no client of such an authority and partition has connected yet")
				return &exitError{status: statusNotAll}
			}
			return nil
		},
	}
	f.register(cmd.Flags())
	f.completeAuthorities(cmd, "authority")
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	return cmd
}

// newRolloutActionCommand returns a command that acts on rollouts. If there was none to act on, the
// command prints nothing and fails; if nothing is empty, that is not a failure.
func newRolloutActionCommand(action, about, nothing string) *cobra.Command {
	var f rolloutFlags
	var reason string
	cmd := &cobra.Command{
		Use:     action + " [--admin HOST:PORT] [--authority A] [--partition P]",
		Short:   about,
		Example: "  xds-relay rollout " + action + " --authority cp.example.com",
		Args:    usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			values, err := f.values(cmd.Flags())
			if err != nil {
				return err
			}
			if reason != "" {
				values.Set("reason", reason)
			}
			var did operator.RolloutAction
			if err := f.do(cmd.Context(), http.MethodPost, "/rollout/"+action, values, &did); err != nil {
				return err
			}
			if did.Rollouts == 0 && nothing != "" && len(did.NoAnswer) == 0 {
				fmt.Fprintln(cmd.ErrOrStderr(), nothing)
				return &exitError{status: statusNotAll}
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s: %d rollouts\n", action, did.Rollouts)
			if len(did.NoAnswer) > 0 {
				printNoAnswer(cmd.ErrOrStderr(), did.NoAnswer)
				return &exitError{status: statusNotAll}
			}
			return nil
		},
	}
	f.register(cmd.Flags())
	f.completeAuthorities(cmd, "authority")
	if action == "reject" {
		cmd.Flags().StringVar(&reason, "reason", "", "the `TEXT` of the NACK that the control plane receives")
	}
	return cmd
}

// values returns which rollouts the command is for.
func (f *rolloutFlags) values(flags *pflag.FlagSet) (url.Values, error) {
	if err := f.check(); err != nil {
		return nil, err
	}
	values := url.Values{}
	for name, value := range map[string]string{"authority": f.authority, "partition": f.partition} {
		if flags.Changed(name) { // which may be empty
			values.Set(name, value)
		}
	}
	return values, nil
}

// printRollout prints a rollout for people.
func printRollout(out io.Writer, s operator.RolloutStatus) {
	if s.Relay != "" {
		fmt.Fprintf(out, "%s: ", oneLine(s.Relay))
	}
	if s.Phase == "unknown" {
		fmt.Fprintf(out, "no answer: %s\n", oneLine(s.Reason))
		return
	}
	fmt.Fprintf(out, "%s", s.Authority)
	if s.Partition != "" {
		fmt.Fprintf(out, ", partition %q", s.Partition)
	}
	fmt.Fprintf(out, ": %s", s.Phase)
	if s.Frozen {
		fmt.Fprint(out, ", frozen")
	}
	if s.Phase == "rolling" {
		fmt.Fprintf(out, ", step %d of %d", s.Step, s.Steps)
	}
	if s.Ends != nil {
		fmt.Fprintf(out, ", whose soak ends at %s", s.Ends.Format(time.TimeOnly))
	}
	if s.Reason != "" {
		fmt.Fprintf(out, ": %s", s.Reason)
	}
	fmt.Fprintln(out)
	for _, c := range s.Cohorts {
		behind := ""
		if c.Behind > 0 {
			behind = fmt.Sprintf(", %d behind other relays rejected it", c.Behind)
		}
		fmt.Fprintf(out, "  cohort %q: %d of %d clients were sent the change, %d acknowledged it%s\n", c.Name, c.Shown, c.Clients, c.Taken, behind)
	}
	for _, c := range s.Changes {
		waits := ""
		if c.Waits != "" {
			waits = ", waits for approval: " + c.Waits
		}
		fmt.Fprintf(out, "  %s %s %q%s\n", c.What, c.Type, c.Name, waits)
	}
	if more := s.Total - len(s.Changes); more > 0 {
		fmt.Fprintf(out, "  and %d more\n", more)
	}
	for _, r := range s.Rejections {
		fmt.Fprintf(out, "  rejected by %q: %s\n", r.Client, r.Words)
	}
	for _, who := range s.PassedOver {
		fmt.Fprintf(out, "  passed over: %q\n", who)
	}
	for _, client := range s.Deaths {
		fmt.Fprintf(out, "  died: %q\n", client)
	}
}
