package openapidoc

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/munnerz/goautoneg"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
)

const mediaJSON = "application/json"

type document struct {
	compressed  []byte
	contentType string
	made        time.Time
}

func (d *document) size() int64 { return int64(len(d.compressed)) + 256 }

// Serve serves a document. If it returns an error, it has not written anything.
func (l *Library) Serve(w http.ResponseWriter, r *http.Request, s Spec) error {
	w.Header().Set("Vary", "Accept")
	protobuf, ok := s.negotiate(r.Header.Get("Accept"))
	if !ok {
		w.WriteHeader(http.StatusNotAcceptable)
		return nil
	}
	etag := strconv.Quote(s.ETag)
	if hasETag(r.Header.Values("If-None-Match"), etag) {
		w.Header().Set("Etag", etag)
		w.WriteHeader(http.StatusNotModified)
		return nil
	}
	d, err := l.document(r.Context(), s, protobuf)
	if err != nil {
		return err
	}
	w.Header().Set("Etag", etag)
	w.Header().Set("Content-Type", d.contentType)
	w.Header().Set("Last-Modified", d.made.UTC().Format(http.TimeFormat))
	w.Header().Add("Vary", "Accept-Encoding")
	compressed := acceptsGzip(r.Header.Get("Accept-Encoding"))
	if compressed {
		w.Header().Set("Content-Encoding", "gzip")
		w.Header().Set("Content-Length", strconv.Itoa(len(d.compressed)))
	}
	w.WriteHeader(http.StatusOK)
	switch {
	case r.Method == http.MethodHead:
	case compressed:
		_, _ = w.Write(d.compressed) // errors are visible to the client only
	default:
		_ = inflateTo(w, d.compressed)
	}
	return nil
}

// negotiate reports whether a client prefers protobuf to JSON, and whether it accepts either.
func (s Spec) negotiate(accept string) (protobuf, ok bool) {
	if accept == "" {
		return false, true
	}
	for _, clause := range goautoneg.ParseAccept(accept) {
		if clause.Type != "application" && clause.Type != "*" {
			continue
		}
		if clause.SubType == "json" || clause.SubType == "*" {
			return false, true
		}
		if slices.Contains(s.format.mediaTypes(), "application/"+clause.SubType) {
			return true, true
		}
	}
	return false, false
}

func hasETag(headers []string, etag string) bool {
	for _, header := range headers {
		for one := range strings.SplitSeq(header, ",") {
			one = strings.TrimPrefix(strings.TrimSpace(one), "W/")
			if one == etag || one == "*" {
				return true
			}
		}
	}
	return false
}

func acceptsGzip(accept string) bool {
	for clause := range strings.SplitSeq(accept, ",") {
		coding, quality, _ := strings.Cut(clause, ";")
		quality = strings.ReplaceAll(strings.TrimSpace(quality), " ", "")
		if coding = strings.TrimSpace(coding); coding == "gzip" || coding == "*" {
			return !strings.HasPrefix(quality, "q=0") || strings.Trim(quality, "q=0.") != ""
		}
	}
	return false
}

func (l *Library) document(ctx context.Context, s Spec, protobuf bool) (*document, error) {
	contentType := mediaJSON
	if protobuf {
		contentType = s.format.mediaTypes()[0]
	}
	key := "document\n" + s.format.name() + "\n" + contentType + "\n" + s.ETag
	return once(ctx, l, key, func(ctx context.Context) (*document, error) {
		on, err := l.base(ctx, s)
		if err != nil {
			return nil, err
		}
		parts := make([]*part, len(s.Definitions))
		err = l.inParallel(ctx, len(parts), func(ctx context.Context, i int) (err error) {
			parts[i], err = l.part(ctx, s, on, s.Definitions[i], protobuf)
			return err
		})
		if err != nil {
			return nil, err
		}
		d := &document{contentType: contentType, made: time.Now()}
		if protobuf {
			d.compressed, err = writeProtobuf(on, parts)
		} else {
			d.compressed, err = writeJSON(on, parts)
		}
		return d, err
	})
}

func (l *Library) base(ctx context.Context, s Spec) (*base, error) {
	scale := false
	for _, d := range s.Definitions {
		scale = scale || hasScale(d)
	}
	key := fmt.Sprintf("base\n%s\n%s\n%t", s.format.name(), s.Hash, scale)
	return once(ctx, l, key, func(ctx context.Context) (*base, error) {
		builtIn, err := s.BuiltIn(ctx)
		if err != nil {
			return nil, err
		}
		return s.format.newBase(builtIn, scale)
	})
}

func hasScale(d Definition) bool {
	s, err := apihelpers.GetSubresourcesForVersion(d.CRD, d.Version)
	return err == nil && s != nil && s.Scale != nil
}

func writeJSON(on *base, parts []*part) ([]byte, error) {
	return compressing(func(w io.Writer) error {
		for _, c := range on.layout {
			if _, err := w.Write(c.text); err != nil {
				return err
			}
			empty := c.empty
			for _, p := range parts {
				added := p.members[c.section]
				if len(added) == 0 {
					continue
				}
				if !empty {
					if _, err := io.WriteString(w, separator); err != nil {
						return err
					}
				}
				empty = false
				if err := inflateTo(w, added); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

func writeProtobuf(on *base, parts []*part) ([]byte, error) {
	return compressing(func(w io.Writer) error {
		if _, err := w.Write(on.protobuf); err != nil {
			return err
		}
		for _, p := range parts {
			if err := inflateTo(w, p.protobuf); err != nil {
				return err
			}
		}
		return nil
	})
}

const separator = ","

// layOut splits a document at the sections to which members can be added. at contains the field path of each section.
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

// membersOf encodes the entries of a map with names that are not in known, as the members of an object.
func membersOf[V any](of, known map[string]V) ([]byte, error) {
	added := maps.Clone(of)
	maps.DeleteFunc(added, func(name string, _ V) bool {
		_, ok := known[name]
		return ok
	})
	if len(added) == 0 {
		return nil, nil
	}
	data, err := json.Marshal(added)
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
