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

// Definition is a version of a custom resource.
type Definition struct {
	CRD     *apiextensionsv1.CustomResourceDefinition
	Version string
	// Hash identifies the definition with all its versions.
	Hash string
}

// The sections of a document to which members are added.
const (
	inPaths = iota
	inSchemas
	inParameters
	nowhere // after the last section
	sections
)

// members are the members to add to JSON objects, one for each section of a document.
type members [sections][]byte

// part is the contribution of a definition to a document: its members as JSON, or a protobuf message.
// Concatenated messages are merged.
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

// Spec specifies a document.
type Spec struct {
	format format
	// BuiltIn reads the document without definitions, as JSON.
	BuiltIn func(context.Context) ([]byte, error)
	// Hash identifies the result of BuiltIn.
	Hash string
	// Definitions are added to it.
	Definitions []Definition
	// ETag identifies the document. It must be available before the document is created.
	ETag string
}

// format is a version of OpenAPI.
type format interface {
	// name identifies the format.
	name() string
	// newBase creates the base of the documents of builtIn.
	newBase(builtIn []byte, scale bool) (*base, error)
	// members returns the contribution of a definition to a base.
	members(on *base, d Definition) (members, error)
	// protobuf encodes members.
	protobuf(m members) ([]byte, error)
	// mediaTypes are the media types of protobuf. The first one is used in responses.
	mediaTypes() []string
}

// base is the document without definitions, with the types that all definitions reference.
type base struct {
	layout []chunk
	// protobuf is the encoded base.
	protobuf []byte
	// known are the parsed documents to which definitions are added.
	known any
}

// chunk is a piece of the base as JSON, followed by the members of parts for a section.
type chunk struct {
	text    []byte
	section int
	// empty is set if there are no members in text.
	empty bool
}

func (b *base) size() int64 {
	n := len(b.protobuf)
	for _, c := range b.layout {
		n += 4 * len(c.text) // the parsed document needs more memory than text
	}
	return int64(n)
}

// compressors are reused, because each needs 0.8 MB, which is more than the rest of a part.
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
		w.Reset(nil) // releases the document
		compressors.Put(w)
	}()
	if err := write(w); err != nil {
		return nil, fmt.Errorf("writing an OpenAPI document: %w", err)
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

// inflateTo writes uncompressed data.
func inflateTo(w io.Writer, data []byte) error {
	if len(data) == 0 {
		return nil
	}
	r, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return fmt.Errorf("decompressing an OpenAPI document: %w", err)
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

// jsonPart returns the contribution of a definition as JSON.
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

// protobufPart returns the contribution of a definition as protobuf.
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

// errNoObject is returned for an invalid built-in document.
var errNoObject = errors.New("the built-in OpenAPI document is malformed")
