package main

// What the commands that use the admin listener of a running relay have in common.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/xds-relay/xds-relay/configs"
)

const (
	// defaultAdmin is the address of the demo's admin listener, and of most examples.
	defaultAdmin = "127.0.0.1:19000"
	// adminVariable has the admin listeners if --admin does not, separated by commas or spaces.
	adminVariable = configs.EnvPrefix + "ADMIN"
)

// operatorFlags say how to reach the admin listeners of relays.
type operatorFlags struct {
	relays  []string // as the user gave them
	tls     tlsFlags
	timeout time.Duration
	local   bool
}

func (f *operatorFlags) register(flags *pflag.FlagSet) {
	flags.StringArrayVar(&f.relays, "admin", nil, "the relay's admin listener, as `HOST:PORT`, URL or unix:PATH (default "+adminVariable+", else "+defaultAdmin+")")
	flags.DurationVar(&f.timeout, "timeout", 10*time.Second, "how long to wait for the answer")
	f.tls.register(flags)
	flags.Lookup("server-name").Usage = "the `NAME` in the relay's certificate, if not the host of --admin"
}

// forSeveral says in the usage of --admin that the command is for several relays.
func forSeveral(flags *pflag.FlagSet) {
	flags.Lookup("admin").Usage += "; repeat it for several relays"
}

// registerLocal adds the flag for one relay of a fleet.
func (f *operatorFlags) registerLocal(flags *pflag.FlagSet) {
	flags.BoolVar(&f.local, "local", false, "of a fleet, only the relay of --admin")
}

func (f *operatorFlags) check() error {
	if f.timeout <= 0 {
		return usageError(fmt.Errorf("--timeout %v: want more than 0", f.timeout))
	}
	return nil
}

// all returns the admin listeners.
func (f *operatorFlags) all() []string {
	if len(f.relays) > 0 {
		// A shell's completion parses the flags twice.
		seen := map[string]bool{}
		return slices.DeleteFunc(slices.Clone(f.relays), func(relay string) bool {
			again := seen[relay]
			seen[relay] = true
			return again
		})
	}
	separator := func(r rune) bool { return r == ',' || r == ' ' }
	if listed := strings.FieldsFunc(os.Getenv(adminVariable), separator); len(listed) > 0 {
		return listed
	}
	return []string{defaultAdmin}
}

// one returns the admin listener, for a command that is for one relay.
func (f *operatorFlags) one() (string, error) {
	all := f.all()
	if len(all) > 1 {
		return "", usageError(fmt.Errorf("this command is for one relay, and there are %d: %s; choose one with --admin", len(all), strings.Join(all, ", ")))
	}
	return all[0], nil
}

// adminQuery is a command that queries the admin listener, and prints the answer as text or JSON.
type adminQuery struct {
	operatorFlags
	output string
}

func (q *adminQuery) register(cmd *cobra.Command) {
	q.operatorFlags.register(cmd.Flags())
	cmd.Flags().StringVarP(&q.output, "output", "o", "text", "text or json")
}

// check checks the flags.
func (q *adminQuery) check() error {
	if q.output != "text" && q.output != "json" {
		return usageError(fmt.Errorf("--output %s: want text or json", q.output))
	}
	return q.operatorFlags.check()
}

// ask gets the document at a path, decodes it into answer, and prints it: with text, or as JSON if --output says so.
// If fine then returns false, the error has statusNotAll.
func (q *adminQuery) ask(cmd *cobra.Command, path string, values url.Values, answer any, text func(io.Writer), fine func() bool) error {
	if err := q.check(); err != nil {
		return err
	}
	if err := q.do(cmd.Context(), http.MethodGet, path, values, answer); err != nil {
		return err
	}
	if q.output == "json" {
		if err := printJSON(cmd.OutOrStdout(), answer); err != nil {
			return err
		}
	} else {
		text(cmd.OutOrStdout())
	}
	if !fine() {
		return &exitError{status: statusNotAll}
	}
	return nil
}

func printJSON(out io.Writer, v any) error {
	e := json.NewEncoder(out)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// do makes a request to the admin listener, and decodes the answer.
func (f *operatorFlags) do(ctx context.Context, method, path string, values url.Values, into any) error {
	address, err := f.one()
	if err != nil {
		return err
	}
	return f.doAt(ctx, address, method, path, values, into)
}

// doAt makes a request to one of the admin listeners.
func (f *operatorFlags) doAt(ctx context.Context, address, method, path string, values url.Values, into any) error {
	if f.local {
		values.Set("local", "true")
	}
	var body io.Reader
	query := ""
	if method == http.MethodGet {
		query = values.Encode()
	} else {
		body = strings.NewReader(values.Encode())
	}
	ctx, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	answer, err := requestOperator(ctx, address, "--admin", f.tls, method, url.URL{Path: path, RawQuery: query}, "application/x-www-form-urlencoded", body)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	const most = 64 << 20
	text, err := io.ReadAll(io.LimitReader(answer.Body, most))
	switch {
	case err != nil:
		return &exitError{status: statusFailed, err: err}
	case isOfTLS(answer, text):
		return &exitError{status: statusFailed, err: speaksTLS(address)}
	case answer.StatusCode == http.StatusNotFound && !ofRelayAdmin(answer):
		return &exitError{status: statusFailed, err: notOfRelay(address, answer)}
	case answer.StatusCode == http.StatusNotFound:
		return &exitError{status: statusNotAll, err: errors.New(strings.TrimSpace(string(text)))}
	case answer.StatusCode == http.StatusUnprocessableEntity || answer.StatusCode == http.StatusConflict:
		return usageError(errors.New(strings.TrimSpace(string(text))))
	case answer.StatusCode != http.StatusOK:
		return &exitError{status: statusFailed, err: fmt.Errorf("the relay answers %s: %s", answer.Status, strings.TrimSpace(string(text)))}
	}
	if err := json.Unmarshal(text, into); err != nil {
		return &exitError{status: statusFailed, err: notOfRelay(address, answer)}
	}
	return nil
}

// requestOperator makes a request to an admin listener. flag is the flag that gave the address, for errors. The caller closes the
// answer's body.
func requestOperator(ctx context.Context, address, flag string, secure tlsFlags, method string, to url.URL, contentType string, body io.Reader) (*http.Response, error) {
	transport, at, err := reachOperator(address, flag, secure)
	if err != nil {
		return nil, err
	}
	at.Path, at.RawQuery = to.Path, to.RawQuery
	request, err := http.NewRequestWithContext(ctx, method, at.String(), body)
	if err != nil {
		return nil, usageError(fmt.Errorf("%s %s: %w", flag, address, err))
	}
	request.Header.Set("Content-Type", contentType)
	answer, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return nil, &exitError{status: statusFailed, err: noAnswer(ctx, address, transport, at, err)}
	}
	return answer, nil
}

// reachOperator returns the transport to an admin listener at HOST:PORT, a URL or unix:PATH, and its URL. flag
// is the flag that gave the address, for errors.
func reachOperator(address, flag string, secure tlsFlags) (*http.Transport, url.URL, error) {
	host := address
	if rest, ok := strings.CutPrefix(address, "https://"); ok {
		host, secure.on = rest, true
	}
	host = hostOfAdmin(host)
	at := url.URL{Scheme: "http", Host: host}
	config, err := secure.config()
	if err != nil {
		return nil, at, usageError(err)
	}
	transport := &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}
	if config != nil {
		at.Scheme = "https"
	}
	if socket, ok := strings.CutPrefix(host, "unix:"); ok {
		at.Host = "localhost"
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		}
	} else if _, _, err := net.SplitHostPort(host); err != nil {
		return nil, at, usageError(fmt.Errorf("%s %s: want HOST:PORT, http://HOST:PORT, https://HOST:PORT or unix:PATH", flag, address))
	}
	return transport, at, nil
}

// hostOfAdmin returns an admin listener without http:// before it and the path / after it.
func hostOfAdmin(address string) string {
	if rest, ok := strings.CutPrefix(address, "http://"); ok {
		address = rest
	}
	if strings.HasPrefix(address, "unix:") {
		return address
	}
	return strings.TrimSuffix(address, "/")
}
