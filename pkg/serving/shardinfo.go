package serving

import (
	"bytes"
	"fmt"
	"mime"
	"net/http"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1beta1 "k8s.io/apimachinery/pkg/apis/meta/v1beta1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/klog/v2"
)

// metaCodecs read and write tables and lists of metadata.
var metaCodecs = func() serializer.CodecFactory {
	scheme := runtime.NewScheme()
	utilruntime.Must(metav1.AddMetaToScheme(scheme))
	utilruntime.Must(metav1beta1.AddMetaToScheme(scheme))
	return serializer.NewCodecFactory(scheme)
}()

// serveWithShardInfo completes the answer to a sharded list that is asked for as
// Table or PartialObjectMetadataList. Upstream makes both from the list and
// leaves its shardInfo out, so that a client took a part for the whole. Other
// answers pass untouched.
//
// The answer is decoded and encoded once more: clients that shard watch, and
// list once.
func serveWithShardInfo(next http.Handler, w http.ResponseWriter, r *http.Request, selector string) {
	plain := r.Clone(r.Context())
	plain.Header.Del("Accept-Encoding") // the answer is read here
	answer := &heldAnswer{header: w.Header()}
	next.ServeHTTP(answer, plain)
	answer.send(w, selector)
}

// asksForConversion reports whether any form of the answer that the client takes
// is made from the list.
func asksForConversion(r *http.Request) bool {
	for _, accept := range r.Header.Values("Accept") {
		if strings.Contains(accept, "as=Table") || strings.Contains(accept, "as=PartialObjectMetadataList") {
			return true
		}
	}
	return false
}

// heldAnswer is an http.ResponseWriter that keeps the body.
type heldAnswer struct {
	header http.Header
	code   int
	body   bytes.Buffer
}

// Header implements http.ResponseWriter.
func (a *heldAnswer) Header() http.Header { return a.header }

// WriteHeader implements http.ResponseWriter.
func (a *heldAnswer) WriteHeader(code int) {
	if a.code == 0 {
		a.code = code
	}
}

// Write implements http.ResponseWriter.
func (a *heldAnswer) Write(p []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	return a.body.Write(p)
}

// send sends the answer, completed where it is a part of a collection.
func (a *heldAnswer) send(w http.ResponseWriter, selector string) {
	body := a.body.Bytes()
	if a.code == http.StatusOK {
		if completed, err := addShardInfo(a.header.Get("Content-Type"), body, selector); err != nil {
			klog.ErrorS(err, "Cannot say in the answer to a sharded list that it is one")
		} else {
			body = completed
		}
	}
	if a.header.Get("Content-Length") != "" {
		a.header.Set("Content-Length", strconv.Itoa(len(body)))
	}
	if a.code != 0 {
		w.WriteHeader(a.code)
	}
	_, _ = w.Write(body) // the client is gone, which is its affair
}

// addShardInfo returns the body with the shardInfo of selector, if it is a table
// or a list of metadata that has none yet.
func addShardInfo(contentType string, body []byte, selector string) ([]byte, error) {
	mediaType, _, err := mime.ParseMediaType(contentType)
	if err != nil {
		return nil, fmt.Errorf("content type %q: %w", contentType, err)
	}
	info, ok := runtime.SerializerInfoForMediaType(metaCodecs.SupportedMediaTypes(), mediaType)
	if !ok {
		return nil, fmt.Errorf("no serializer for content type %q", contentType)
	}
	obj, _, err := info.Serializer.Decode(body, nil, nil)
	if runtime.IsNotRegisteredError(err) {
		return body, nil // the client got the list itself
	}
	if err != nil {
		return nil, fmt.Errorf("reading the answer: %w", err)
	}
	list, ok := obj.(metav1.ShardedListInterface)
	if !ok || list.GetShardInfo() != nil {
		return body, nil
	}
	list.SetShardInfo(&metav1.ShardInfo{Selector: selector})
	var out bytes.Buffer
	if err := info.Serializer.Encode(obj, &out); err != nil {
		return nil, fmt.Errorf("writing the answer: %w", err)
	}
	return out.Bytes(), nil
}
