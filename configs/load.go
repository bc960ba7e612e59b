package configs

// This file is the way from YAML to a Config: parse for positions, check the
// shape, decode, fill in defaults, check the meaning.

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"regexp"
	"strconv"

	"github.com/go-viper/mapstructure/v2"
	"github.com/spf13/viper"
	"go.yaml.in/yaml/v3"
)

// Load reads the YAML file at path and returns what Parse makes of it.
func Load(path string) (*Config, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	return Parse(path, data)
}

// Parse returns the configuration that data, in YAML, says, with defaults
// filled in. Name is what errors call the file. The error is an Errors with
// all that is wrong, found without looking at any other file: see CheckFiles.
func Parse(name string, data []byte) (*Config, error) {
	root, err := parseYAML(name, data)
	if err != nil {
		return nil, err
	}
	// What shape finds wrong it takes out of the tree, so that the rest can be
	// decoded and checked as well.
	s := newShape(name)
	if !s.walk(root, reflect.TypeFor[Config](), "", "") {
		return nil, s.errs.orNil()
	}
	c := &Config{}
	if err := decode(root, c); err != nil {
		return nil, append(s.errs, s.errorf("", "%w", err)).orNil()
	}
	c.Node.Metadata = s.metadata
	c.source = s.source
	c.setDefaults()
	if err := append(s.errs, c.check(s.unread)...).orNil(); err != nil {
		return nil, err
	}
	return c, nil
}

// parseYAML returns the root of the only document in data. An empty one is an
// empty map.
func parseYAML(name string, data []byte) (*yaml.Node, error) {
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var document, second yaml.Node
	err := decoder.Decode(&document)
	if errors.Is(err, io.EOF) || err == nil && document.Content[0].ShortTag() == "!!null" {
		return &yaml.Node{Kind: yaml.MappingNode, Line: 1}, nil
	}
	if err == nil {
		switch err = decoder.Decode(&second); {
		case errors.Is(err, io.EOF):
			return document.Content[0], nil
		case err == nil:
			return nil, Errors{{File: name, Line: second.Line, Err: errors.New("a second YAML document starts here (want one)")}}
		}
	}
	return nil, Errors{syntaxError(name, err)}
}

var yamlLine = regexp.MustCompile(`^yaml: line (\d+): `)

// syntaxError moves the line out of the YAML library's text.
func syntaxError(name string, err error) Error {
	text := err.Error()
	e := Error{File: name}
	if m := yamlLine.FindStringSubmatch(text); m != nil {
		e.Line, _ = strconv.Atoi(m[1])
		text = text[len(m[0]):]
	}
	e.Err = fmt.Errorf("not YAML: %s", text)
	return e
}

// decode sets c from a tree whose shape is right.
func decode(root *yaml.Node, c *Config) error {
	settings := map[string]any{}
	if err := root.Decode(&settings); err != nil {
		return err
	}
	// The delimiter of nested keys is one that no key has.
	v := viper.NewWithOptions(viper.KeyDelimiter("\x00"))
	if err := v.MergeConfigMap(settings); err != nil {
		return err
	}
	return v.UnmarshalExact(c, func(d *mapstructure.DecoderConfig) {
		d.WeaklyTypedInput = false
		d.DecodeHook = mapstructure.ComposeDecodeHookFunc(
			mapstructure.StringToTimeDurationHookFunc(),
			mapstructure.TextUnmarshallerHookFunc(),
		)
	})
}
