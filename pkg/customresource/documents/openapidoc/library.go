// Package openapidoc assembles OpenAPI documents from the built-in document and a part for each definition,
// and serves them.
//
//	definition ─► part: its paths and schemas, compressed
//	definition ─► part ─┐
//	built-in document ──┴─► base ─► document: base and parts, concatenated
//
// A part is created once for all documents that contain it. Therefore a document of 1,000 definitions is cheap if one
// of them changes, and a client that timed out finds its parts when it retries. The parts of a document are created in
// parallel. Requests share the workers part by part, so that they do not wait for complete documents of others.
//
// A Library keeps documents and parts. It removes those not read for a while, and the least recently read ones
// if it is full.
package openapidoc

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"container/list"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/singleflight"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// sized is an entry of a Library. size estimates its memory in bytes.
type sized interface{ size() int64 }

// Library caches documents and their parts. It is safe for concurrent use.
type Library struct {
	limit int64
	// hands limits the parts created concurrently for all documents.
	hands chan struct{}

	mu     sync.Mutex
	used   int64
	items  map[string]*list.Element // of *item
	order  *list.List               // most recently read first
	making singleflight.Group
}

type item struct {
	key  string
	of   sized
	read time.Time
}

// NewLibrary returns a Library of limited size in bytes.
func NewLibrary(limit int64) *Library {
	return &Library{
		limit: limit,
		hands: make(chan struct{}, runtime.GOMAXPROCS(0)),
		items: map[string]*list.Element{},
		order: list.New(),
	}
}

// Expire removes entries that have not been read since before.
func (l *Library) Expire(before time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for e := l.order.Back(); e != nil; e = l.order.Back() {
		if it, ok := e.Value.(*item); !ok || !it.read.Before(before) {
			return
		}
		l.dropLocked(e)
	}
}

// Size returns the size in bytes.
func (l *Library) Size() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.used
}

func (l *Library) dropLocked(e *list.Element) {
	it, _ := l.order.Remove(e).(*item)
	delete(l.items, it.key)
	l.used -= it.of.size()
}

func (l *Library) find(key string) (sized, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e, ok := l.items[key]
	if !ok {
		return nil, false
	}
	l.order.MoveToFront(e)
	it, _ := e.Value.(*item)
	it.read = time.Now()
	return it.of, true
}

func (l *Library) keep(key string, of sized) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.items[key] = l.order.PushFront(&item{key: key, of: of, read: time.Now()})
	l.used += of.size()
	for l.used > l.limit {
		l.dropLocked(l.order.Back())
	}
}

// once returns the entry of a key. If there is none, one caller creates it, while others wait for it or for
// the end of ctx. If it fails, another one tries again.
func once[T sized](ctx context.Context, l *Library, key string, produce func(context.Context) (T, error)) (T, error) {
	for ctx.Err() == nil {
		var own atomic.Bool
		made := l.making.DoChan(key, func() (any, error) {
			own.Store(true)
			if known, ok := l.find(key); ok {
				return known, nil
			}
			var of T
			err := guarded(func() (err error) {
				if err = ctx.Err(); err == nil {
					of, err = produce(ctx)
				}
				return err
			})
			if err == nil {
				l.keep(key, of)
			}
			return of, err
		})
		select {
		case result := <-made:
			if own.Load() || result.Err == nil {
				of, _ := result.Val.(T)
				return of, result.Err
			}
		case <-ctx.Done():
			// produce may ignore ctx. Its caller keeps its worker and its seat until it ends.
			if own.Load() {
				<-made
			}
		}
	}
	var none T
	return none, context.Cause(ctx)
}

// inParallel creates n entries with all available workers.
func (l *Library) inParallel(ctx context.Context, n int, one func(ctx context.Context, i int) error) error {
	workers, ctx := errgroup.WithContext(ctx)
	for i := range n {
		select {
		case l.hands <- struct{}{}:
		case <-ctx.Done():
			return cmp.Or(workers.Wait(), context.Cause(ctx))
		}
		workers.Go(func() error {
			defer func() { <-l.hands }()
			return guarded(func() error { return one(ctx, i) })
		})
	}
	return workers.Wait()
}

// guarded turns a panic into an error, because a panic in a worker would end the process.
func guarded(f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("making an OpenAPI document panicked: %v", r)
		}
	}()
	return f()
}

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

// part returns the contribution of a definition to a base, as JSON or as protobuf.
func (l *Library) part(ctx context.Context, s Spec, on *base, d Definition, protobuf bool) (*part, error) {
	key := fmt.Sprintf("part %t\n%s\n%s\n%s\n%s", protobuf, s.format.name(), s.Hash, d.Hash, d.Version)
	return once(ctx, l, key, func(ctx context.Context) (*part, error) {
		if protobuf {
			return l.protobufPart(ctx, s, on, d)
		}
		return jsonPart(s.format, on, d)
	})
}

func jsonPart(f format, on *base, d Definition) (*part, error) {
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
}

func (l *Library) protobufPart(ctx context.Context, s Spec, on *base, d Definition) (*part, error) {
	compressed, err := l.part(ctx, s, on, d, false)
	if err != nil {
		return nil, err
	}
	var added members
	for i := range added {
		var inflated bytes.Buffer
		if err := inflateTo(&inflated, compressed.members[i]); err != nil {
			return nil, err
		}
		added[i] = inflated.Bytes()
	}
	encoded, err := s.format.protobuf(added)
	if err != nil {
		return nil, fmt.Errorf("encoding the OpenAPI document of %s.%s as protobuf: %w",
			d.CRD.Spec.Names.Plural, d.CRD.Spec.Group, err)
	}
	p := &part{}
	p.protobuf, err = deflate(encoded)
	return p, err
}

// errNoObject is returned for an invalid built-in document.
var errNoObject = errors.New("the built-in OpenAPI document is malformed")
