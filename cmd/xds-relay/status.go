package main

// `xds-relay status` shows what is wrong in running relays.

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/xds-relay/xds-relay/operator"
)

type statusFlags struct {
	adminQuery
	watch bool
	every time.Duration
}

func newStatusCommand() *cobra.Command {
	var f statusFlags
	cmd := &cobra.Command{
		Use:   "status [--admin HOST:PORT]...",
		Short: "Show what is wrong in running relays",
		Long: `Show what is wrong now in a running relay: unreachable authorities, clients that reject resources,
references to resources that do not exist, and rollouts that wait. With several relays, show a table of them, and
the problems of each.

With --watch, show it again and again until Ctrl-C: on a terminal in one place, elsewhere when it changes.

Exit status:
  0  no error is shown; there may be warnings
  1  something is wrong
  2  the command line is wrong
  3  there was no answer from an admin listener`,
		Example: `  xds-relay status
  xds-relay status --watch
  xds-relay status --admin unix:/run/xds-relay/admin.sock -o json
  XDS_RELAY_ADMIN=relay-1:19000,relay-2:19000 xds-relay status`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.every <= 0 {
				return usageError(fmt.Errorf("--every %v: want more than 0", f.every))
			}
			if err := f.check(); err != nil {
				return err
			}
			f.local = f.local || len(f.all()) > 1 // each is asked itself
			if f.watch {
				return f.follow(cmd.Context(), cmd.OutOrStdout())
			}
			return f.show(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), coloursOf(cmd.OutOrStdout()))
		},
	}
	f.register(cmd)
	f.registerLocal(cmd.Flags())
	forSeveral(cmd.Flags())
	cmd.Flags().BoolVarP(&f.watch, "watch", "w", false, "show it until Ctrl-C")
	cmd.Flags().DurationVar(&f.every, "every", 2*time.Second, "with --watch: the time between two questions to a relay")
	return cmd
}

// relayAnswer is the status of one of several relays, or why there is none.
type relayAnswer struct {
	Relay  string                `json:"relay"`
	Host   string                `json:"host,omitempty"`
	Status *operator.RelayStatus `json:"status,omitempty"`
	Error  string                `json:"error,omitempty"`
	failed int                   // the exit status, 0 if there is an answer
}

// look asks a relay.
func (f *statusFlags) look(ctx context.Context, address string) relayAnswer {
	answer := relayAnswer{Relay: address}
	var s operator.RelayStatus
	if err := f.doAt(ctx, address, http.MethodGet, "/api/status", url.Values{}, &s); err != nil {
		failed := &exitError{status: statusFailed, err: err}
		errors.As(err, &failed)
		answer.Error, answer.failed = err.Error(), failed.status
		return answer
	}
	answer.Status = &s
	var build operator.BuildInfo
	if f.doAt(ctx, address, http.MethodGet, "/version", url.Values{}, &build) == nil { // an older relay has no such document
		answer.Host = build.Host
	}
	return answer
}

// lookAll asks all relays at the same time: one that does not answer does not delay the others.
func (f *statusFlags) lookAll(ctx context.Context) []relayAnswer {
	relays := f.all()
	answers := make([]relayAnswer, len(relays))
	done := make(chan struct{})
	for i, address := range relays {
		go func() {
			answers[i] = f.look(ctx, address)
			done <- struct{}{}
		}()
	}
	for range relays {
		<-done
	}
	return answers
}

// show shows the status once.
func (f *statusFlags) show(ctx context.Context, out, stderr io.Writer, paint colours) error {
	answers := f.lookAll(ctx)
	worst := 0
	for _, a := range answers {
		switch {
		case a.failed > 0:
			fmt.Fprintf(stderr, "%s\n", a.Error)
			worst = max(worst, a.failed)
		case slices.ContainsFunc(a.Status.Problems, isError):
			worst = max(worst, statusNotAll)
		}
	}
	if err := f.print(out, answers, paint); err != nil {
		return err
	}
	if worst > 0 {
		return &exitError{status: worst}
	}
	return nil
}

func isError(p operator.Problem) bool { return p.Severity == operator.SeverityError }

// print prints the answers: one as it is, and several as a table with the problems below.
func (f *statusFlags) print(out io.Writer, answers []relayAnswer, paint colours) error {
	several := len(answers) > 1
	switch {
	case f.output == "json" && several:
		return printJSON(out, answers)
	case f.output == "json" && answers[0].Status != nil:
		return printJSON(out, answers[0].Status)
	case f.output == "json":
		return nil
	case several:
		printRelays(out, answers, paint)
	case answers[0].Status != nil:
		printStatus(out, &answers[0], paint)
	}
	return nil
}

// follow shows the status until ctx ends.
func (f *statusFlags) follow(ctx context.Context, out io.Writer) error {
	again := time.NewTicker(f.every)
	defer again.Stop()
	terminal, paint := isTerminal(out), coloursOf(out)
	var before []byte
	for {
		var text bytes.Buffer
		err := f.show(ctx, &text, &text, paint)
		if ctx.Err() != nil {
			return nil
		}
		if usage := (*exitError)(nil); errors.As(err, &usage) && usage.status == statusUsage {
			_, _ = out.Write(text.Bytes())
			return err
		}
		now := time.Now().Format(time.DateTime)
		switch {
		case terminal:
			fmt.Fprintf(out, "%severy %v, %s\n\n%s", clearScreen, f.every, now, text.Bytes())
		case !bytes.Equal(before, text.Bytes()):
			if _, err := fmt.Fprintf(out, "%s\n%s\n", now, text.Bytes()); err != nil {
				return &exitError{status: statusFailed, err: fmt.Errorf("writing the output: %w", err)}
			}
		}
		before = text.Bytes()
		select {
		case <-again.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// printRelays prints a table of relays, and the problems of each.
func printRelays(out io.Writer, answers []relayAnswer, paint colours) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "RELAY\tHOST\tVERSION\tSTARTED\tCONFIGURATION\tSTREAMS\tNAMES\tERRORS\tWARNINGS\tSTATE")
	for _, a := range answers {
		s := a.Status
		if s == nil {
			fmt.Fprintf(w, "%s\t-\t-\t-\t-\t-\t-\t-\t-\tno answer\n", oneLine(a.Relay))
			continue
		}
		errs := 0
		for _, p := range s.Problems {
			if isError(p) {
				errs++
			}
		}
		state := "ready"
		if !s.Ready {
			state = "not ready"
		}
		more := ""
		if s.More > 0 {
			more = "+"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%d\t%d\t%d\t%s\t%s\n", oneLine(a.Relay), dash(oneLine(a.Host)), oneLine(s.Version), s.Started.Format(time.DateTime), oneLine(s.Config.Hash),
			s.Clients, s.Resources, errs, strconv.Itoa(len(s.Problems)-errs)+more, state)
	}
	_ = w.Flush() // as fmt.Fprintf to a terminal
	for _, a := range answers {
		switch {
		case a.Status == nil:
			fmt.Fprintf(out, "\n%s\n%s: %s\n", paint.bold(oneLine(a.Relay)), paint.red("no answer"), oneLine(a.Error))
		case len(a.Status.Problems) > 0:
			fmt.Fprintf(out, "\n%s\n", paint.bold(oneLine(a.Relay)))
			printProblems(out, a.Status, paint)
		}
	}
}

func dash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

func printStatus(out io.Writer, a *relayAnswer, paint colours) {
	s := a.Status
	ready := paint.green("ready")
	if !s.Ready {
		ready = paint.red("not ready")
	}
	host := ""
	if a.Host != "" {
		host = " on " + oneLine(a.Host)
	}
	fmt.Fprintf(out, "xds-relay %s%s: %s, started %s, configuration %s loaded %s\n", oneLine(s.Version), host, ready, s.Started.Format(time.DateTime), s.Config.Hash, s.Config.Loaded.Format(time.DateTime))
	fmt.Fprintf(out, "%d streams of clients; %d names, wildcards and globs\n", s.Clients, s.Resources)
	if s.Fleet != nil {
		printFleet(out, s.Fleet)
	}
	if s.Relay != "" {
		fmt.Fprintf(out, "%d streams of clients at all relays that answer; this one is %s\n", s.AllClients, oneLine(s.Relay))
	}
	printNoAnswer(out, s.NoAnswer)
	printProblems(out, s, paint)
	if len(s.Problems) == 0 {
		fmt.Fprintln(out, paint.green("nothing is wrong"))
	}
	if s.Unread > 0 {
		fmt.Fprintf(out, "%d resources have not been checked yet for references\n", s.Unread)
	}
}

func printProblems(out io.Writer, s *operator.RelayStatus, paint colours) {
	for _, p := range s.Problems {
		since, severity := "", paint.yellow(fmt.Sprint(p.Severity))
		if isError(p) {
			severity = paint.red(fmt.Sprint(p.Severity))
		}
		if p.Since != nil {
			since = " (since " + p.Since.Format(time.DateTime) + ")"
		}
		at := ""
		if p.Relay != "" {
			at = " at " + oneLine(p.Relay)
		}
		fmt.Fprintf(out, "%s%s: %s%s\n", severity, at, oneLine(p.Text), since)
	}
	if s.More > 0 {
		fmt.Fprintf(out, "and %d more of the same kinds\n", s.More)
	}
}
