package main

// `xds-relay clients`, `explain` and `diff` show what a running relay does, over its admin listener.

import (
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/xds-relay/xds-relay/internal/xdstype"
	"github.com/xds-relay/xds-relay/operator"
)

// printNoAnswer prints which relays of the fleet do not answer.
func printNoAnswer(out io.Writer, silent []operator.NoAnswer) {
	for _, s := range silent {
		fmt.Fprintf(out, "no answer from %s: %s\n", oneLine(s.Relay), oneLine(s.Reason))
	}
}

func printFleet(out io.Writer, f *operator.FleetStatus) {
	if f.Alone {
		fmt.Fprintf(out, "fleet %q: its members are not known yet\n", f.Name)
	}
	for _, m := range f.Members {
		state := "answers"
		switch {
		case m.Self:
			state = "is this relay"
		case !m.Reachable:
			state = "does not answer"
		}
		fmt.Fprintf(out, "fleet %q: %s %s\n", f.Name, oneLine(m.Address), state)
	}
	fmt.Fprintf(out, "%d scopes come from the authorities' servers, %d from other members of the fleet\n", f.OwnedScopes, f.PeerScopes)
}

// oneLine returns a text that may come from others as one line without control characters for a terminal.
func oneLine(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return ' '
		case !strconv.IsPrint(r):
			return '\uFFFD'
		}
		return r
	}, text)
}

func newClientsCommand() *cobra.Command {
	var q adminQuery
	var state string
	var limit int
	cmd := &cobra.Command{
		Use:   "clients [SEARCH] [--admin HOST:PORT]",
		Short: "List the clients of a running relay",
		Long: `List the clients of a running relay, in the order in which they connected. SEARCH is a part of a node id,
cluster, address or identity, or #NUMBER of a stream.

Exit status:
  0  there are matching clients
  1  there are none
  2  the command line is wrong
  3  there was no answer from the admin listener`,
		Example:           "  xds-relay clients\n  xds-relay clients envoy-web --state rejects -o json",
		Args:              usageArgs(cobra.MaximumNArgs(1)),
		ValidArgsFunction: q.completeClients(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			values := url.Values{"limit": {strconv.Itoa(limit)}}
			if len(args) > 0 {
				values.Set("search", args[0])
			}
			if state != "" {
				values.Set("state", state)
			}
			var list operator.ClientList
			return q.ask(cmd, "/api/clients", values, &list, func(out io.Writer) { printClients(out, &list) }, func() bool { return len(list.Clients) > 0 })
		},
	}
	q.register(cmd)
	q.registerLocal(cmd.Flags())
	cmd.Flags().StringVar(&state, "state", "", "only clients in this `STATE`: ok, rejects (what they were sent) or refused (names)")
	cmd.Flags().IntVar(&limit, "limit", 100, "print at most this many `CLIENTS`, up to 1000")
	return cmd
}

func printClients(out io.Writer, list *operator.ClientList) {
	if len(list.Clients) == 0 {
		fmt.Fprintf(out, "no client matches; %d streams are open\n", list.Open)
		printNoAnswer(out, list.NoAnswer)
		return
	}
	inFleet, head := list.Clients[0].Relay != "", ""
	if inFleet {
		head = "\tRELAY"
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "STREAM\tCLIENT\tCLUSTER\tADDRESS\tIDENTITY\tSTATE\tSUBSCRIPTIONS"+head)
	for _, c := range list.Clients {
		fmt.Fprintf(w, "#%d\t%s\t%s\t%s\t%s\t%s\t%d", c.Stream, oneLine(c.Node), oneLine(c.Cluster), c.Peer, oneLine(c.Who), c.State, c.Subscriptions)
		if inFleet {
			fmt.Fprintf(w, "\t%s", oneLine(c.Relay))
		}
		fmt.Fprintln(w)
		for _, t := range c.Types {
			if t.NACK != nil {
				fmt.Fprintf(w, "\trejects %s: %s\n", t.Type, oneLine(t.NACK.Reason))
			}
		}
	}
	_ = w.Flush() // as fmt.Fprintf to a terminal
	printNoAnswer(out, list.NoAnswer)
	if list.Next != 0 || list.More {
		fmt.Fprintln(out, "there are more: search, or raise --limit")
	}
}

func newExplainCommand() *cobra.Command {
	var q adminQuery
	var typeName string
	cmd := &cobra.Command{
		Use:   "explain CLIENT NAME [--type TYPE] [--admin HOST:PORT]",
		Short: "Explain where a name comes from for a client, and why the client does not have it",
		Long: `Explain, step by step, where a resource name comes from for a connected client of a running relay:
what the name means for the client, whether the client may have it, which authority and server it
comes from, what the relay has, and what it has sent to the client. CLIENT is a node id, #NUMBER of a stream, or a part of a node id that one client has.

For a configuration without a running relay, see xds-relay check --name.

Exit status:
  0  the client has the resource
  1  it does not have it, or there is no such client
  2  the command line is wrong
  3  there was no answer from the admin listener`,
		Example:           "  xds-relay explain envoy-web-1 cart --type cluster\n  xds-relay explain '#12' xdstp://cp.example.com/envoy.config.cluster.v3.Cluster/cart",
		Args:              usageArgs(cobra.ExactArgs(2)),
		ValidArgsFunction: q.completeClients(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			values := url.Values{"client": {args[0]}, "name": {args[1]}}
			if typeName != "" {
				if _, err := xdstype.Parse(typeName); err != nil {
					return usageError(fmt.Errorf("--type: %w", err))
				}
				values.Set("type", typeName)
			}
			var e operator.Explanation
			return q.ask(cmd, "/api/explain", values, &e, func(out io.Writer) { printExplanation(out, &e) }, func() bool { return e.Has })
		},
	}
	q.register(cmd)
	q.registerLocal(cmd.Flags())
	cmd.Flags().StringVarP(&typeName, "type", "t", "", "the `TYPE` of NAME; xdstp names contain it")
	completeTypes(cmd, "type")
	return cmd
}

func printExplanation(out io.Writer, e *operator.Explanation) {
	paint := coloursOf(out)
	if e.Relay != "" {
		fmt.Fprintf(out, "relay:    %s\n", oneLine(e.Relay))
	}
	for _, s := range e.Steps {
		stops := ""
		if s.Stops {
			stops = paint.red("stops here: ")
		}
		fmt.Fprintf(out, "%-9s %s%s\n", s.Part+":", stops, oneLine(s.Text))
	}
	verdict := paint.red
	if e.Has {
		verdict = paint.green
	}
	fmt.Fprintln(out, verdict(oneLine(e.Verdict)))
}

func newDiffCommand() *cobra.Command {
	var q adminQuery
	var between serversFlags
	cmd := &cobra.Command{
		Use: "diff CLIENT CLIENT [--admin HOST:PORT]" + //nolint:dupword // it compares two
			"\n  xds-relay diff --server HOST:PORT --server HOST:PORT [--node FILE]",
		Short: "Show what two clients of a running relay hold differently, or what two servers give",
		Long: `Show how the resources of two connected clients of a running relay differ: those that only one has, and
those that differ in content or only in state. CLIENT is as in xds-relay explain. Secrets are not shown.

With --server twice, show how what two xDS servers give a client with the given Node differs: all listeners and clusters,
and all that they name, directly or not. Versions are not compared. So a control plane and the relay in front of
it, or two control planes, are compared before and after a move of clients.

Exit status:
  0  they are the same
  1  they differ, or there is no such client
  2  the command line is wrong
  3  there was no answer from the admin listener, or no connection or stream to a server`,
		Example:           "  xds-relay diff envoy-web-1 envoy-web-2\n  xds-relay diff --server cp.example.com:18000 --server 127.0.0.1:18000 --node node.json",
		ValidArgsFunction: q.completeClients(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if between.given() {
				return between.compare(cmd, &q, args)
			}
			if err := cobra.ExactArgs(2)(cmd, args); err != nil {
				return usageError(err)
			}
			var d operator.ClientDifference
			return q.ask(cmd, "/api/diff", url.Values{"a": {args[0]}, "b": {args[1]}}, &d, func(out io.Writer) { printDifference(out, &d) }, func() bool { return d.Total == 0 && !d.Cut })
		},
	}
	q.register(cmd)
	q.registerLocal(cmd.Flags())
	between.register(cmd.Flags())
	return cmd
}

func printDifference(out io.Writer, d *operator.ClientDifference) {
	for _, of := range d.Differences {
		text := map[string]string{"only_a": "only the first has it", "only_b": "only the second has it", "content": "the content differs", "state": "the state differs"}[of.What]
		state := func(h *operator.HeldResource) string {
			if h == nil {
				return "-"
			}
			return strings.TrimSpace(h.State + " " + h.Version)
		}
		fmt.Fprintf(out, "%s %s: %s (%s, %s)\n", of.Type, strconv.Quote(of.Name), text, oneLine(state(of.A)), oneLine(state(of.B)))
		for line := range strings.Lines(of.Lines) {
			fmt.Fprintf(out, "    %s\n", coloursOf(out).changed(oneLine(strings.TrimSuffix(line, "\n"))))
		}
	}
	if more := d.Total - len(d.Differences); more > 0 {
		fmt.Fprintf(out, "and %d more differences\n", more)
	}
	fmt.Fprintf(out, "%d differences, %d resources alike\n", d.Total, d.Same)
}
