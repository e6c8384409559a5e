package openapidoc

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// Definition is a version of a custom resource, as it is served.
type Definition struct {
	CRD     *apiextensionsv1.CustomResourceDefinition
	Version string
	// Hash identifies the definition, with all its versions.
	Hash string
}

// Where the members of a document are.
const (
	inPaths = iota
	inSchemas
	inParameters
	nowhere // after the last section
	sections
)

// members are what is to be put between the braces of JSON objects, one for
// each section of a document.
type members [sections][]byte

// part is what a definition adds to a document: its members as JSON, or the
// whole part as a protobuf message. Such messages are merged by writing them
// one after another.
type part struct {
	members  members // compressed
	protobuf []byte  // compressed
}

func (p *part) size() int64 {
	n := len(p.protobuf)
	for _, m := range p.members {
		n += len(m)
	}
	return int64(n) + 256
}

// Spec says which document is wanted.
type Spec struct {
	format format
	// BuiltIn reads the document without definitions, as JSON.
	BuiltIn func(context.Context) ([]byte, error)
	// Hash identifies what BuiltIn reads.
	Hash string
	// Definitions are added to it.
	Definitions []Definition
	// ETag identifies the document. It says more than its content: it is known
	// before the document is made.
	ETag string
}

// format is a version of OpenAPI.
type format interface {
	// name tells formats apart.
	name() string
	// newBase makes the base of the documents of builtIn.
	newBase(builtIn []byte, scale bool) (*base, error)
	// members returns what a definition adds to a base.
	members(on *base, d Definition) (members, error)
	// protobuf encodes members.
	protobuf(m members) ([]byte, error)
	// mediaTypes are those of protobuf, with that of answers first.
	mediaTypes() []string
}

// base is what a document says without definitions, with the types that all
// definitions refer to.
type base struct {
	layout []chunk
	// protobuf is the same, encoded.
	protobuf []byte
	// known are the parsed documents to which definitions are added.
	known any
}

// chunk is a piece of the base as JSON, followed by the members that parts have
// for a section.
type chunk struct {
	text    []byte
	section int
	// empty is set if there are no members in text.
	empty bool
}

func (b *base) size() int64 {
	n := len(b.protobuf)
	for _, c := range b.layout {
		n += 4 * len(c.text) // once more as what was parsed, which takes more
	}
	return int64(n)
}

// compressors are reused because each takes 0.8 MB, which is more than all else that a part is made of.
var compressors = sync.Pool{New: func() any {
	w, _ := gzip.NewWriterLevel(nil, gzip.BestSpeed) // the level is valid
	return w
}}

func compressing(write func(io.Writer) error) ([]byte, error) {
	var b bytes.Buffer
	w, ok := compressors.Get().(*gzip.Writer)
	if !ok {
		return nil, errors.New("compressing an OpenAPI document: there is no compressor")
	}
	w.Reset(&b)
	defer func() {
		w.Reset(nil) // it would keep the document
		compressors.Put(w)
	}()
	if err := write(w); err != nil {
		return nil, fmt.Errorf("putting an OpenAPI document together: %w", err)
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("compressing an OpenAPI document: %w", err)
	}
	return bytes.Clone(b.Bytes()), nil
}

func deflate(data []byte) ([]byte, error) {
	if len(data) == 0 {
		return nil, nil
	}
	return compressing(func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	})
}

// inflateTo writes what was compressed.
func inflateTo(w io.Writer, data []byte) error {
	if len(data) == 0 {
		return nil
	}
	r, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return fmt.Errorf("reading what was compressed: %w", err)
	}
	if _, err := io.Copy(w, r); err != nil { //nolint:gosec // it was compressed here
		return err
	}
	return r.Close()
}

func inflate(data []byte) ([]byte, error) {
	var b bytes.Buffer
	err := inflateTo(&b, data)
	return b.Bytes(), err
}

// jsonPart returns what a definition adds as JSON.
func (l *Library) jsonPart(ctx context.Context, f format, on *base, baseKey string, d Definition) (*part, error) {
	key := "json part\n" + f.name() + "\n" + baseKey + "\n" + d.Hash + "\n" + d.Version
	return once(ctx, l, key, func(context.Context) (*part, error) {
		added, err := f.members(on, d)
		if err != nil {
			return nil, fmt.Errorf("making the OpenAPI document of %s.%s: %w", d.CRD.Spec.Names.Plural, d.CRD.Spec.Group, err)
		}
		p := &part{}
		for i := range added {
			if p.members[i], err = deflate(added[i]); err != nil {
				return nil, err
			}
		}
		return p, nil
	})
}

// protobufPart returns what a definition adds as protobuf.
func (l *Library) protobufPart(ctx context.Context, f format, on *base, baseKey string, d Definition) (*part, error) {
	key := "protobuf part\n" + f.name() + "\n" + baseKey + "\n" + d.Hash + "\n" + d.Version
	return once(ctx, l, key, func(ctx context.Context) (*part, error) {
		compressed, err := l.jsonPart(ctx, f, on, baseKey, d)
		if err != nil {
			return nil, err
		}
		var added members
		for i := range added {
			if added[i], err = inflate(compressed.members[i]); err != nil {
				return nil, err
			}
		}
		encoded, err := f.protobuf(added)
		if err != nil {
			return nil, fmt.Errorf("encoding the OpenAPI document of %s.%s as protobuf: %w", d.CRD.Spec.Names.Plural, d.CRD.Spec.Group, err)
		}
		p := &part{}
		p.protobuf, err = deflate(encoded)
		return p, err
	})
}

// errNoObject is what a built-in document is that cannot be added to.
var errNoObject = errors.New("the built-in OpenAPI document is not what it should be")
