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
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// operatorFlags say how to reach a relay's admin listener.
type operatorFlags struct {
	admin   string
	tls     tlsFlags
	timeout time.Duration
	local   bool
}

func (f *operatorFlags) register(flags *pflag.FlagSet) {
	flags.StringVar(&f.admin, "admin", "127.0.0.1:19000", "the relay's admin listener, as `HOST:PORT` or unix:PATH")
	flags.DurationVar(&f.timeout, "timeout", 10*time.Second, "how long to wait for the answer")
	f.tls.register(flags)
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

// adminQuery is a command that queries the admin listener, and prints the answer as text or JSON.
type adminQuery struct {
	operatorFlags
	output string
}

func (q *adminQuery) register(cmd *cobra.Command) {
	q.operatorFlags.register(cmd.Flags())
	cmd.Flags().StringVarP(&q.output, "output", "o", "text", "text or json")
}

// ask gets the document at a path, decodes it into answer, and prints it: with text, or as JSON if --output says so.
// If fine then returns false, the error has statusNotAll.
func (q *adminQuery) ask(cmd *cobra.Command, path string, values url.Values, answer any, text func(io.Writer), fine func() bool) error {
	if q.output != "text" && q.output != "json" {
		return usageError(fmt.Errorf("--output %s: want text or json", q.output))
	}
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
	transport, at, err := reachOperator(f.admin, "--admin", f.tls)
	if err != nil {
		return err
	}
	at.Path = path
	if f.local {
		values.Set("local", "true")
	}
	var body io.Reader
	if method == http.MethodGet {
		at.RawQuery = values.Encode()
	} else {
		body = strings.NewReader(values.Encode())
	}
	ctx, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, at.String(), body)
	if err != nil {
		return usageError(fmt.Errorf("--admin %s: %w", f.admin, err))
	}
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	answer, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return &exitError{status: statusFailed, err: err}
	}
	defer answer.Body.Close()
	const most = 64 << 20
	text, err := io.ReadAll(io.LimitReader(answer.Body, most))
	switch {
	case err != nil:
		return &exitError{status: statusFailed, err: err}
	case answer.StatusCode == http.StatusNotFound:
		return &exitError{status: statusNotAll, err: errors.New(strings.TrimSpace(string(text)))}
	case answer.StatusCode == http.StatusUnprocessableEntity || answer.StatusCode == http.StatusConflict:
		return usageError(errors.New(strings.TrimSpace(string(text))))
	case answer.StatusCode != http.StatusOK:
		return &exitError{status: statusFailed, err: fmt.Errorf("the relay answers %s: %s", answer.Status, strings.TrimSpace(string(text)))}
	}
	if err := json.Unmarshal(text, into); err != nil {
		return &exitError{status: statusFailed, err: fmt.Errorf("%s is not an admin listener of xds-relay: %w", f.admin, err)}
	}
	return nil
}

// reachOperator returns the transport to an admin listener at HOST:PORT or unix:PATH, and its URL. flag
// is the flag that gave the address, for errors.
func reachOperator(address, flag string, secure tlsFlags) (*http.Transport, url.URL, error) {
	at := url.URL{Scheme: "http", Host: address}
	config, err := secure.config()
	if err != nil {
		return nil, at, usageError(err)
	}
	transport := &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}
	if config != nil {
		at.Scheme = "https"
	}
	if socket, ok := strings.CutPrefix(address, "unix:"); ok {
		at.Host = "localhost"
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		}
	} else if _, _, err := net.SplitHostPort(address); err != nil {
		return nil, at, usageError(fmt.Errorf("%s %s: want HOST:PORT or unix:PATH", flag, address))
	}
	return transport, at, nil
}
