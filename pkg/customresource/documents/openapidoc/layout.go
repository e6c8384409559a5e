package openapidoc

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// separator separates two members of an object.
const separator = ","

// layOut splits a document at the sections to which members can be added. at contains the field path of each
// section.
func layOut(document []byte, at map[string]int) ([]chunk, error) {
	l := &layouter{at: at}
	if err := l.object(document, ""); err != nil {
		return nil, err
	}
	l.cut(nowhere, false)
	return l.layout, nil
}

type layouter struct {
	at     map[string]int
	text   bytes.Buffer
	layout []chunk
}

func (l *layouter) cut(section int, empty bool) {
	l.layout = append(l.layout, chunk{text: bytes.Clone(l.text.Bytes()), section: section, empty: empty})
	l.text.Reset()
}

// object writes an object that contains sections.
func (l *layouter) object(data []byte, prefix string) error {
	of := map[string]json.RawMessage{}
	if err := json.Unmarshal(data, &of); err != nil {
		return fmt.Errorf("%w: %w", errNoObject, err)
	}
	inside := map[string]bool{} // fields that lead to sections
	for path := range l.at {
		if rest, ok := strings.CutPrefix(path, prefix); ok {
			name, _, deeper := strings.Cut(rest, "/")
			inside[name] = deeper
			if of[name] == nil {
				of[name] = json.RawMessage(`{}`)
			}
		}
	}
	l.text.WriteByte('{')
	for i, name := range slices.Sorted(maps.Keys(of)) {
		if i > 0 {
			l.text.WriteString(separator)
		}
		fmt.Fprintf(&l.text, "%q:", name)
		deeper, leads := inside[name]
		switch {
		case !leads:
			l.text.Write(of[name])
		case deeper:
			if err := l.object(of[name], prefix+name+"/"); err != nil {
				return err
			}
		default:
			if err := l.section(of[name], l.at[prefix+name]); err != nil {
				return err
			}
		}
	}
	l.text.WriteByte('}')
	return nil
}

// section writes an object to which members can be added.
func (l *layouter) section(data []byte, section int) error {
	inner, err := inBraces(data)
	if err != nil {
		return err
	}
	l.text.WriteByte('{')
	l.text.Write(inner)
	l.cut(section, len(inner) == 0)
	l.text.WriteByte('}')
	return nil
}

// inBraces returns the members of a JSON object.
func inBraces(data []byte) ([]byte, error) {
	data = bytes.TrimSpace(data)
	if len(data) < 2 || data[0] != '{' {
		return nil, errNoObject
	}
	return bytes.TrimSpace(data[1 : len(data)-1]), nil
}

// membersOf encodes a map as the members of an object.
func membersOf[V any](of map[string]V) ([]byte, error) {
	if len(of) == 0 {
		return nil, nil
	}
	data, err := json.Marshal(of)
	if err != nil {
		return nil, fmt.Errorf("encoding: %w", err)
	}
	return inBraces(data)
}

// common returns the entries with names that are in others.
func common[V any](of, others map[string]V) map[string]V {
	found := map[string]V{}
	for name := range others {
		if v, ok := of[name]; ok {
			found[name] = v
		}
	}
	return found
}

// without returns the entries with names that are not in others.
func without[V any](of, others map[string]V) map[string]V {
	left := map[string]V{}
	for name, v := range of {
		if _, ok := others[name]; !ok {
			left[name] = v
		}
	}
	return left
}
