package main

// How `get` and `watch` print resources.

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/spf13/pflag"

	"github.com/xds-relay/xds-relay/client"
	"github.com/xds-relay/xds-relay/client/render"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

type printFlags struct {
	output      string
	showSecrets bool
	types       descriptorFlags
}

func (f *printFlags) register(flags *pflag.FlagSet) {
	flags.StringVarP(&f.output, "output", "o", "yaml", "print as `FORM`: yaml, json, or name for the names only")
	flags.BoolVar(&f.showSecrets, "show-secrets", false, "print private keys and other secrets instead of [redacted]")
	f.types.register(flags)
}

// check checks the flags, and makes the types of --descriptor-set known.
func (f *printFlags) check() error {
	switch f.output {
	case "yaml", "json", "name":
		return f.types.use()
	}
	return fmt.Errorf("--output: unknown form %q (want yaml, json or name)", f.output)
}

// printer writes resources in the form that printFlags select. After a failed write, err is
// set and the printer writes nothing more.
type printer struct {
	out     io.Writer
	form    string
	options render.Options
	count   int
	err     error
}

func (f *printFlags) printer(out io.Writer) *printer {
	return &printer{out: out, form: f.output, options: render.Options{ShowSecrets: f.showSecrets}}
}

func (p *printer) write(text []byte, err error) {
	if p.err == nil {
		p.err = err
	}
	if p.err != nil {
		return
	}
	if _, err := p.out.Write(text); err != nil {
		p.err = fmt.Errorf("writing the output: %w", err)
	}
	p.count++
}

// resource writes one resource.
func (p *printer) resource(r *discoveryv3.Resource) {
	switch p.form {
	case "name":
		p.write([]byte(r.GetName()+"\n"), nil)
	case "json":
		p.write(p.options.IndentedJSON(r))
	default:
		text, err := p.options.YAML(r)
		if p.count > 0 {
			text = append([]byte("---\n"), text...)
		}
		p.write(text, err)
	}
}

// changes are the kinds of events that change a resource, with a sign and a word for each.
var changes = map[client.Kind]struct{ sign, word string }{
	client.Added:   {"+", "added"},
	client.Changed: {"~", "changed"},
	client.Removed: {"-", "removed"},
}

// change writes a change and the resource after the change. In YAML that is a document below a comment,
// and in JSON a line, so that programs can read both.
func (p *printer) change(e client.Event, typeURL string, at time.Time) {
	change := changes[e.Kind]
	stamp := at.Format("2006-01-02T15:04:05.000Z07:00")
	if p.form == "json" {
		p.write(p.changeJSON(e, change.word, stamp))
		return
	}
	header := fmt.Sprintf("%s %s %s %s %q", stamp, change.sign, change.word, xdstype.Word(typeURL), e.Name)
	if version := e.Resource.GetVersion(); version != "" && e.Kind != client.Removed {
		header += fmt.Sprintf(" version %q", version)
	}
	if p.form == "name" {
		p.write([]byte(header+"\n"), nil)
		return
	}
	text := []byte("---\n# " + header + "\n")
	var err error
	if e.Kind != client.Removed {
		var document []byte
		document, err = p.options.YAML(e.Resource)
		text = append(text, document...)
	}
	p.write(text, err)
}

func (p *printer) changeJSON(e client.Event, word, stamp string) ([]byte, error) {
	line := struct {
		Time     string          `json:"time"`
		Change   string          `json:"change"`
		Name     string          `json:"name"`
		Resource json.RawMessage `json:"resource,omitempty"`
	}{Time: stamp, Change: word, Name: e.Name}
	if e.Kind != client.Removed {
		text, err := p.options.JSON(e.Resource)
		if err != nil {
			return nil, err
		}
		line.Resource = text
	}
	text, err := json.Marshal(line)
	return append(text, '\n'), err
}
