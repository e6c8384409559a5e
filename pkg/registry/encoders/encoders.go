// Package encoders encodes long lists and watch events as JSON faster than upstream, with the same output.
package encoders

import (
	"bytes"
	"encoding/json"
	"io"
	"reflect"
	"runtime"
	"sync"
	"unicode"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	jsonserializer "k8s.io/apimachinery/pkg/runtime/serializer/json"
)

const (
	// long is the minimum number of objects for which several cores are used.
	long = 128
	// maxWorkers prevents one list from occupying all cores of a large machine.
	maxWorkers = 4
	// ahead is the number of parts per worker that are encoded or wait to be written, which limits the memory.
	ahead = 2
	// partBytes is the intended size of a part, and partItems the maximum number of objects.
	partBytes = 64 << 10
	partItems = 256
)

// plainJSON identifies the encoder that is replaced: JSON, but neither pretty nor YAML.
var plainJSON = jsonserializer.NewSerializerWithOptions(nil, nil, nil, jsonserializer.SerializerOptions{}).Identifier()

// Serializer returns s with the faster encoders.
func Serializer(s apiruntime.NegotiatedSerializer) apiruntime.NegotiatedSerializer {
	return serializer{s}
}

type serializer struct {
	apiruntime.NegotiatedSerializer
}

func (s serializer) EncoderForVersion(e apiruntime.Encoder, gv apiruntime.GroupVersioner) apiruntime.Encoder {
	if e.Identifier() != plainJSON {
		return s.NegotiatedSerializer.EncoderForVersion(e, gv)
	}
	e = s.NegotiatedSerializer.EncoderForVersion(listEncoder{e}, gv)
	if allocating, ok := e.(apiruntime.EncoderWithAllocator); ok {
		return eventEncoder{allocating}
	}
	return e
}

// listEncoder encodes long lists on several cores. Upstream encodes the objects sequentially while it writes.
type listEncoder struct {
	apiruntime.Encoder
}

func (e listEncoder) Encode(obj apiruntime.Object, w io.Writer) error {
	items, ok := itemsOf(obj)
	if !ok {
		return e.Encoder.Encode(obj, w)
	}
	head, ok, err := e.head(obj)
	if err != nil {
		return err
	}
	if !ok {
		return e.Encoder.Encode(obj, w)
	}
	// Two writes, as upstream, because the first one indicates that the list comes in parts.
	for _, piece := range [][]byte{head[:1], head[1:]} {
		if _, err := w.Write(piece); err != nil {
			return err
		}
	}
	if err := encodeItems(items, w); err != nil {
		return err
	}
	_, err = w.Write([]byte(tail))
	return err
}

func itemsOf(obj apiruntime.Object) (reflect.Value, bool) {
	t := reflect.TypeOf(obj)
	at, cached := itemsAt.Load(t)
	if !cached {
		at = itemsIn(t)
		itemsAt.Store(t, at)
	}
	index, _ := at.([]int)
	if index == nil {
		return reflect.Value{}, false
	}
	items := reflect.ValueOf(obj).Elem().FieldByIndex(index)
	return items, items.Len() >= long
}

// itemsAt caches the index of the items field by list type, or nil for other types.
var itemsAt sync.Map

func itemsIn(t reflect.Type) []int {
	if t.Kind() != reflect.Pointer || t.Elem().Kind() != reflect.Struct || t.Implements(reflect.TypeFor[json.Marshaler]()) {
		return nil
	}
	items, ok := t.Elem().FieldByName("Items")
	if !ok || items.Type.Kind() != reflect.Slice || items.Type.Elem().Kind() != reflect.Struct ||
		!reflect.PointerTo(items.Type.Elem()).Implements(reflect.TypeFor[apiruntime.Object]()) {
		return nil
	}
	return items.Index
}

const tail = "]}\n"

// head returns the text before the items, or false if the items are not the last field.
func (e listEncoder) head(obj apiruntime.Object) ([]byte, bool, error) {
	list := reflect.ValueOf(obj).Elem()
	empty := reflect.New(list.Type())
	empty.Elem().Set(list)
	items := empty.Elem().FieldByName("Items")
	items.Set(reflect.MakeSlice(items.Type(), 0, 0))
	emptied, ok := reflect.TypeAssert[apiruntime.Object](empty)
	if !ok {
		return nil, false, nil
	}
	var out bytes.Buffer
	if err := e.Encoder.Encode(emptied, &out); err != nil {
		return nil, false, err
	}
	head, ok := bytes.CutSuffix(out.Bytes(), []byte(tail))
	return head, ok && bytes.HasSuffix(head, []byte(`"items":[`)), nil
}

// part is a run of the items of a list.
type part struct {
	items    reflect.Value
	data     bytes.Buffer
	err      error
	panicked any
	done     chan struct{}
}

var parts = sync.Pool{New: func() any { return &part{done: make(chan struct{}, 1)} }}

// encodeItems writes the comma-separated items. Workers encode the next parts while the caller writes.
func encodeItems(items reflect.Value, w io.Writer) error {
	workers := min(runtime.GOMAXPROCS(0), maxWorkers)
	todo := make(chan *part, workers*ahead)
	var running sync.WaitGroup
	defer running.Wait()
	defer close(todo)
	for range workers {
		running.Go(func() {
			for p := range todo {
				p.encode()
			}
		})
	}
	size, next := 1, 0
	var queue []*part
	for next < items.Len() || len(queue) > 0 {
		for next < items.Len() && len(queue) < workers*ahead {
			end := min(next+size, items.Len())
			p, _ := parts.Get().(*part)
			p.items = items.Slice(next, end)
			todo <- p
			queue, next = append(queue, p), end
		}
		p := queue[0]
		queue = queue[1:]
		<-p.done
		if p.panicked != nil {
			panic(p.panicked) // so that the request's goroutine handles it
		}
		if p.err != nil {
			return p.err
		}
		size = nextSize(p)
		data := p.data.Bytes()
		if next == items.Len() && len(queue) == 0 {
			data = data[:len(data)-1] // no comma after the last
		}
		if _, err := w.Write(data); err != nil {
			return err
		}
		p.recycle()
	}
	return nil
}

func nextSize(p *part) int {
	each := max(1, p.data.Len()/p.items.Len())
	return min(max(1, partBytes/each), partItems)
}

func (p *part) encode() {
	defer func() {
		p.panicked = recover()
		p.done <- struct{}{}
	}()
	p.data.Reset()
	p.err = nil
	encoder := json.NewEncoder(&p.data)
	for i := range p.items.Len() {
		if p.err = encoder.Encode(p.items.Index(i).Addr().Interface()); p.err != nil {
			return
		}
		p.data.Bytes()[p.data.Len()-1] = ',' // was a newline
	}
}

// recycle returns the part to the pool, unless it has grown too large.
func (p *part) recycle() {
	p.items = reflect.Value{}
	if p.data.Cap() <= 4*partBytes {
		parts.Put(p)
	}
}

// eventEncoder copies the encoded object into the watch event. Upstream processes each byte again.
type eventEncoder struct {
	apiruntime.EncoderWithAllocator
}

func (e eventEncoder) Encode(obj apiruntime.Object, w io.Writer) error {
	if ok, err := writeEvent(obj, w); ok {
		return err
	}
	return e.EncoderWithAllocator.Encode(obj, w)
}

func (e eventEncoder) EncodeWithAllocator(obj apiruntime.Object, w io.Writer, memAlloc apiruntime.MemoryAllocator) error {
	if ok, err := writeEvent(obj, w); ok {
		return err
	}
	return e.EncoderWithAllocator.EncodeWithAllocator(obj, w, memAlloc)
}

// writeEvent writes an event whose object is one line of JSON. It returns false for other objects.
func writeEvent(obj apiruntime.Object, w io.Writer) (bool, error) {
	event, ok := obj.(*metav1.WatchEvent)
	if !ok || event.Object.Object != nil {
		return false, nil
	}
	line, ok := bytes.CutSuffix(event.Object.Raw, []byte("}\n"))
	if !ok || !bytes.HasPrefix(line, []byte("{")) || bytes.IndexByte(line, '\n') >= 0 {
		return false, nil
	}
	for _, r := range event.Type {
		if !unicode.IsUpper(r) {
			return false, nil
		}
	}
	for _, piece := range []string{`{"type":"`, event.Type, `","object":`} {
		if _, err := io.WriteString(w, piece); err != nil {
			return true, err
		}
	}
	if _, err := w.Write(line); err != nil {
		return true, err
	}
	_, err := io.WriteString(w, "}}\n")
	return true, err
}
