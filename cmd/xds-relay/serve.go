package main

import (
	"context"
	"embed"
	"fmt"
	"io"
	"io/fs"
	"log/slog"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"github.com/spf13/cobra"

	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/loglines"
	"github.com/xds-relay/xds-relay/relay"
)

//go:embed demo
var demoFiles embed.FS

const demoHint = `xds-relay serves the built-in demo: the authority demo.example.com, from files in the binary.

Try, in another terminal:
  xds-relay get --server %[1]s --type listener
  xds-relay get --server %[1]s --type cluster cart catalogue
  xds-relay get --server %[1]s xdstp://demo.example.com/envoy.config.cluster.v3.Cluster/payments
  xds-relay watch --server %[1]s --type endpoint cart
  curl http://%[2]s/clients

With a configuration it serves your own: xds-relay serve --config relay.yaml
Ctrl-C ends it.

`

type serveFlags struct {
	config    string
	listen    string
	admin     string
	logLevel  string
	logFormat string
}

func newServeCommand() *cobra.Command {
	var f serveFlags
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the relay",
		Long: `Run the relay. Without --config it runs a demo: an authority that is fed from
files in the binary.

Logs go to stderr. SIGINT or SIGTERM end it with status 0, within 15 seconds; a second
one ends it at once.`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, err := f.logger(cmd.ErrOrStderr())
			if err != nil {
				return usageError(err)
			}
			return f.serve(cmd.Context(), log, cmd.OutOrStdout())
		},
	}
	cmd.Flags().StringVarP(&f.config, "config", "c", "", "the configuration `FILE` (YAML)")
	cmd.Flags().StringVar(&f.listen, "listen", "", "serve clients on this `HOST:PORT` instead of the first listener's in the configuration")
	cmd.Flags().StringVar(&f.admin, "admin", "", "serve the operator on this `HOST:PORT` instead of the configuration's")
	cmd.Flags().StringVar(&f.logLevel, "log-level", "info", "debug, info, warn or error")
	cmd.Flags().StringVar(&f.logFormat, "log-format", "text", "text or json")
	return cmd
}

func (f *serveFlags) logger(w io.Writer) (*slog.Logger, error) {
	// Clients and control planes choose much of what is logged.
	o := slog.HandlerOptions{ReplaceAttr: loglines.ClipAttr}
	var level slog.Level
	if err := level.UnmarshalText([]byte(f.logLevel)); err != nil {
		return nil, fmt.Errorf("--log-level: %q is none of debug, info, warn, error", f.logLevel)
	}
	o.Level = level
	switch f.logFormat {
	case "text":
		return slog.New(slog.NewTextHandler(w, &o)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, &o)), nil
	}
	return nil, fmt.Errorf("--log-format: %q is neither text nor json", f.logFormat)
}

// serve runs the relay until ctx ends, and not much longer.
func (f *serveFlags) serve(ctx context.Context, log *slog.Logger, out io.Writer) error {
	s := relay.NewShutdown(log)
	return s.Bound(ctx, func() error { return f.run(ctx, s, log, out) })
}

func (f *serveFlags) run(ctx context.Context, s *relay.Shutdown, log *slog.Logger, out io.Writer) error {
	cfg, builtIn, err := load(f.config)
	if err != nil {
		return err
	}
	if f.listen != "" {
		cfg.Listeners[0].Address = f.listen
	}
	if f.admin != "" {
		cfg.Admin.Address = f.admin
	}
	limitMemory(log, memlimit.FromCgroup)
	r, err := relay.New(cfg, relay.Options{Files: builtIn, Log: log, Shutdown: s})
	if err != nil {
		return err
	}
	defer r.Close()
	if err := r.Listen(ctx); err != nil {
		return err
	}
	if builtIn != nil {
		fmt.Fprintf(out, demoHint, r.Addresses()[0], r.AdminAddress())
	}
	return r.Run(ctx)
}

// load reads the configuration, or the demo's together with its files.
func load(path string) (*configs.Config, fs.FS, error) {
	if path != "" {
		cfg, err := configs.Load(path)
		if err != nil {
			return nil, nil, fmt.Errorf("the configuration is not valid:\n%w", err)
		}
		return cfg, nil, nil
	}
	text, err := demoFiles.ReadFile("demo/relay.yaml")
	if err != nil {
		return nil, nil, err
	}
	cfg, err := configs.Parse("demo/relay.yaml", text)
	if err != nil {
		return nil, nil, err
	}
	files, err := fs.Sub(demoFiles, "demo/resources")
	return cfg, files, err
}
