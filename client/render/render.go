// Package render prints resources for people, as YAML or JSON. Private keys and other secrets are
// redacted by default. For messages that this binary does not know, or cannot decode, it prints the type
// and the size, or, if secrets are shown, the content in base64.
//
// The form is that of an envoy.service.discovery.v3.Resource, with the fields
// named as in Envoy's documentation.
package render

//go:generate go run envoy_gen.go

import (
	"bytes"
	"encoding/json"
	"fmt"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/xds-relay/xds-relay/internal/secrets"
)

// Options select what to print.
type Options struct {
	// ShowSecrets prints sensitive fields, in place of [redacted].
	ShowSecrets bool
}

// JSON returns the resource as one line of JSON.
func (o Options) JSON(r *discoveryv3.Resource) ([]byte, error) {
	printable := secrets.Masked[*discoveryv3.Resource]
	if o.ShowSecrets {
		printable = secrets.Unmasked[*discoveryv3.Resource]
	}
	marshal := protojson.MarshalOptions{UseProtoNames: true, AllowPartial: true, Resolver: secrets.Types{}}
	text, err := marshal.Marshal(printable(r))
	if err != nil {
		// It has a value that JSON cannot express, such as a duration that is out of range.
		bare := proto.CloneOf(r)
		bare.Resource, bare.Metadata, bare.Ttl = secrets.Hidden(r.GetResource(), o.ShowSecrets), nil, nil
		if text, err = marshal.Marshal(bare); err != nil {
			return nil, fmt.Errorf("resource %q: %w", r.GetName(), err)
		}
	}
	// protojson varies its spaces on purpose.
	var line bytes.Buffer
	if err := json.Compact(&line, text); err != nil {
		return nil, fmt.Errorf("resource %q: %w", r.GetName(), err)
	}
	return line.Bytes(), nil
}

// IndentedJSON returns the resource as JSON on many lines, with a newline at the end.
func (o Options) IndentedJSON(r *discoveryv3.Resource) ([]byte, error) {
	line, err := o.JSON(r)
	if err != nil {
		return nil, err
	}
	var text bytes.Buffer
	if err := json.Indent(&text, line, "", "  "); err != nil {
		return nil, fmt.Errorf("resource %q: %w", r.GetName(), err)
	}
	text.WriteByte('\n')
	return text.Bytes(), nil
}

// YAML returns the resource as a YAML document, without a separator, with its
// fields in the order of their messages.
func (o Options) YAML(r *discoveryv3.Resource) ([]byte, error) {
	line, err := o.JSON(r)
	if err != nil {
		return nil, err
	}
	text, err := yamlOf(line)
	if err != nil {
		return nil, fmt.Errorf("resource %q: %w", r.GetName(), err)
	}
	return text, nil
}
