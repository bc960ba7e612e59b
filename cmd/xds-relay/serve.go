package main

import (
	"context"
	"embed"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/internal/loglines"
	"github.com/xds-relay/xds-relay/internal/process"
	"github.com/xds-relay/xds-relay/internal/telemetry"
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
  curl %[2]s/clients

To serve your own resources: xds-relay serve --config relay.yaml
Ctrl-C ends the relay.

`

type serveFlags struct {
	settingsFlags
	listen, admin       string
	watchConfig         bool
	logLevel, logFormat string
}

func newServeCommand() *cobra.Command {
	var f serveFlags
	cmd := &cobra.Command{
		Use:   "serve [[--config] FILE]",
		Short: "Run the relay",
		Long: `Run the relay. Without a configuration it runs a demo: an authority whose resources are
files in the binary.

` + settingsHelp + `, XDS_RELAY_LOG_LEVEL and XDS_RELAY_LOG_FORMAT stand for the flags.

The relay loads the configuration again on SIGHUP, on POST /reload on the admin listener, and
with --watch-config when the file changes. If the new configuration has an error, the relay
keeps all of the old one.

Metrics and traces go to an OpenTelemetry collector if OTEL_EXPORTER_OTLP_ENDPOINT is set, or where
other OTEL_* variables send them.

Logs go to stderr. On SIGTERM the relay closes its clients' connections over the time that drain
in the configuration sets, and ends with status 0 within 15 seconds of that. On SIGINT it ends
without draining. A second signal ends the process at once.`,
		Args: usageArgs(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := configArgument(cmd.Flags(), args); err != nil {
				return err
			}
			f.admin = hostOfAdmin(f.admin)
			o, err := f.overrides(cmd.Flags())
			if err != nil {
				return err
			}
			log, err := logger(o, cmd.ErrOrStderr())
			if err != nil {
				return usageError(err)
			}
			return serve(cmd.Context(), o, f.watchConfig, log, cmd.OutOrStdout())
		},
	}
	f.register(cmd.Flags())
	cmd.Flags().StringVar(&f.listen, "listen", "", "the `HOST:PORT` for clients, instead of that of the first listener in the configuration")
	cmd.Flags().StringVar(&f.admin, "admin", "", "the `ADDRESS` of the admin listener (a loopback host and a port, or unix:/path), instead of that in the configuration")
	cmd.Flags().BoolVar(&f.watchConfig, "watch-config", false, "reload the configuration file when it changes")
	cmd.Flags().StringVar(&f.logLevel, "log-level", "info", "debug, info, warn or error")
	cmd.Flags().StringVar(&f.logFormat, "log-format", "text", "text or json")
	return cmd
}

// overrides returns the settings that override the configuration file.
func (f *serveFlags) overrides(flags *pflag.FlagSet) (*configs.Overrides, error) {
	o, err := f.settingsFlags.overrides(flags)
	if err != nil {
		return nil, err
	}
	for key, flag := range map[string]string{
		"listeners[0].address": "listen",
		"admin.address":        "admin",
		optionLogLevel:         "log-level",
		optionLogFormat:        "log-format",
	} {
		o.BindFlag(key, flags.Lookup(flag))
	}
	return o, nil
}

func logger(settings *configs.Overrides, w io.Writer) (*slog.Logger, error) {
	// Clients and control planes choose many of the texts in log lines.
	o := slog.HandlerOptions{ReplaceAttr: loglines.ClipAttr}
	var level slog.Level
	if err := level.UnmarshalText([]byte(settings.Option(optionLogLevel))); err != nil {
		return nil, fmt.Errorf("%s: %q is none of debug, info, warn, error", settings.Origin(optionLogLevel), settings.Option(optionLogLevel))
	}
	o.Level = level
	switch settings.Option(optionLogFormat) {
	case "text":
		return slog.New(slog.NewTextHandler(w, &o)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, &o)), nil
	}
	return nil, fmt.Errorf("%s: %q is neither text nor json", settings.Origin(optionLogFormat), settings.Option(optionLogFormat))
}

// serve runs the relay until ctx ends, and then at most until the shutdown timeout.
func serve(ctx context.Context, settings *configs.Overrides, follow bool, log *slog.Logger, out io.Writer) error {
	s := process.NewShutdown(log)
	return s.Bound(ctx, func() error { return serveUntil(ctx, settings, follow, s, log, out) })
}

func serveUntil(ctx context.Context, settings *configs.Overrides, follow bool, s *process.Shutdown, log *slog.Logger, out io.Writer) error {
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	cfg, builtIn, err := load(settings)
	if err != nil {
		return err
	}
	process.LimitMemory(log, memlimit.FromCgroup)
	if err := process.ForbidCoreDumps(); err != nil {
		log.Warn("cannot disable core dumps, which would contain secrets", "reason", err)
	}
	sends, err := telemetry.FromEnvironment(ctx, log)
	if err != nil {
		return err
	}
	defer sends.Close()
	r, err := relay.New(cfg, relay.Options{Files: builtIn, Log: log, Load: reloader(settings), Parse: settings.Parse, Shutdown: s, GCTuner: process.NewGCTuner(), Telemetry: sends})
	if err != nil {
		return err
	}
	defer r.Close()
	if err := r.Listen(ctx); err != nil {
		return err
	}
	if builtIn != nil {
		operator := "http://" + r.AdminAddress()
		if path, unix := configs.UnixPath(r.AdminAddress()); unix {
			operator = "--unix-socket " + path + " http://localhost"
		}
		fmt.Fprintf(out, demoHint, r.Addresses()[0], operator)
	}
	reloading, stop := context.WithCancel(ctx)
	var reloads sync.WaitGroup
	defer reloads.Wait()
	defer stop()
	reloads.Go(func() { reloadOn(reloading, hangups, r) })
	if path := settings.Option(optionConfig); follow && path != "" {
		reloads.Go(func() { r.Follow(reloading, path) })
	}
	return r.Run(ctx)
}

// reloader returns the function that loads the configuration again; nil for the demo.
func reloader(settings *configs.Overrides) func() (*configs.Config, error) {
	if settings.Option(optionConfig) == "" {
		return nil
	}
	return func() (*configs.Config, error) {
		cfg, _, err := load(settings)
		return cfg, err
	}
}

// reloadOn reloads on each signal until ctx ends.
func reloadOn(ctx context.Context, signals <-chan os.Signal, r *relay.Relay) {
	for {
		select {
		case <-signals:
			_ = r.Load(ctx, "SIGHUP") // it logs what is wrong
		case <-ctx.Done():
			return
		}
	}
}

// load returns the configuration, or the demo's configuration and its files.
func load(settings *configs.Overrides) (*configs.Config, fs.FS, error) {
	var cfg *configs.Config
	var files fs.FS
	var err error
	if path := settings.Option(optionConfig); path != "" {
		cfg, err = settings.Load(path)
	} else {
		var text []byte
		if text, err = demoFiles.ReadFile("demo/relay.yaml"); err != nil {
			return nil, nil, err
		}
		if files, err = fs.Sub(demoFiles, "demo/resources"); err != nil {
			return nil, nil, err
		}
		cfg, err = settings.Parse("demo/relay.yaml", text)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("the configuration is not valid:\n%w", err)
	}
	return cfg, files, nil
}
