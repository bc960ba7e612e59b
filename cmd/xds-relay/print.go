package main

// How `get` and `watch` print resources.

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/rogpeppe/go-internal/diff"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/proto"

	"github.com/xds-relay/xds-relay/client"
	"github.com/xds-relay/xds-relay/client/render"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

type printFlags struct {
	output      string
	showSecrets bool
	types       descriptorFlags
	// differences: the command prints changes, and has the form diff.
	differences bool
}

func (f *printFlags) register(flags *pflag.FlagSet) {
	forms := "yaml, json, or name for the names only"
	if f.differences {
		forms = "yaml, json, diff for the difference from the state before, or name for the names only"
	}
	flags.StringVarP(&f.output, "output", "o", "yaml", "print as `FORM`: "+forms)
	flags.BoolVar(&f.showSecrets, "show-secrets", false, "print private keys and other secrets instead of [redacted]")
	f.types.register(flags)
}

// check checks the flags, and makes the types of --descriptor-set known.
func (f *printFlags) check() error {
	switch f.output {
	case "yaml", "json", "name":
		return f.types.use()
	case "diff":
		if f.differences {
			return f.types.use()
		}
	}
	if f.differences {
		return fmt.Errorf("--output: unknown form %q (want yaml, json, diff or name)", f.output)
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
	before  map[string][]byte // of the form diff: the last text of each resource
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
	if p.form == "diff" {
		p.write(p.difference(e, header))
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

// difference returns the header and the difference from the resource before, line by line.
func (p *printer) difference(e client.Event, header string) ([]byte, error) {
	if p.before == nil {
		p.before = map[string][]byte{}
	}
	before := p.before[e.Name]
	var after []byte
	if e.Kind == client.Removed {
		delete(p.before, e.Name)
	} else {
		var err error
		bare := proto.CloneOf(e.Resource)
		bare.Version = "" // the header has it
		if after, err = p.options.YAML(bare); err != nil {
			return nil, err
		}
		p.before[e.Name] = after
	}
	text := []byte(header + "\n")
	if before != nil && bytes.Equal(before, after) {
		return append(text, "  (nothing that is shown differs)\n"...), nil
	}
	_, lines, _ := bytes.Cut(diff.Diff("before", before, "after", after), []byte("\n")) // without the line with the command
	for line := range bytes.Lines(lines) {
		if !bytes.HasPrefix(line, []byte("--- before")) && !bytes.HasPrefix(line, []byte("+++ after")) {
			text = append(append(text, "  "...), line...)
		}
	}
	return text, nil
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
