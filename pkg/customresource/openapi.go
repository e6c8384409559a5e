package customresource

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/munnerz/goautoneg"
	"k8s.io/apiextensions-apiserver/pkg/controller/openapi/builder"
	apiextensionsfeatures "k8s.io/apiextensions-apiserver/pkg/features"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/kube-openapi/pkg/handler3"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/utils/lru"

	"github.com/shardplane/shardplane/pkg/customresource/openapigate"
)

const (
	openapiV3Path     = "/openapi/v3"
	openapiV3JSON     = "json"
	openapiV3Protobuf = "com.github.proto-openapi.spec.v3.v1.0+protobuf"
	// openapiV3OldProtobuf is how older clients name the same encoding.
	openapiV3OldProtobuf = "com.github.proto-openapi.spec.v3@v1.0+protobuf"
)

const (
	// rememberedV3 is for how many group versions documents are kept, of all
	// sets together: a document is a hundred kilobytes and more, and sets that
	// differ elsewhere share it.
	rememberedV3 = 256
	// rememberedV2 is for how many sets the whole document is kept, which few
	// clients ask for.
	rememberedV2 = 4
)

// openapiDocuments are the OpenAPI documents that were asked for, of all sets.
type openapiDocuments struct {
	mu sync.Mutex // one is made at a time
	// v2mu is mu for v2: the document of very many definitions takes minutes,
	// and nobody else is to wait for it.
	v2mu sync.Mutex
	v3   *lru.Cache // of v3Key to *openapiDocument
	v2   *lru.Cache // of a set's key to http.Handler
}

func newOpenAPIDocuments() *openapiDocuments {
	return &openapiDocuments{v3: lru.New(rememberedV3), v2: lru.New(rememberedV2)}
}

// v3Key names the document of a group version by the definitions in it.
type v3Key struct {
	gv   schema.GroupVersion
	hash string
}

// openapiDocument is a document in its encodings.
type openapiDocument struct {
	json, protobuf []byte
	etag           string
	made           time.Time
}

// serveV3Index answers /openapi/v3.
func (s *documentSet) serveV3Index(w http.ResponseWriter, r *http.Request) bool {
	index := handler3.OpenAPIV3Discovery{Paths: map[string]handler3.OpenAPIV3DiscoveryGroupVersion{}}
	status, body := get(r.Context(), s.builtIns.next, openapiV3Path, http.Header{"Accept": {"application/json"}})
	if status == http.StatusOK {
		if err := json.Unmarshal(body, &index); err != nil {
			writeUnavailable(w, r, fmt.Errorf("reading the built-in OpenAPI index: %w", err))
			return true
		}
	}
	for gv := range s.versions {
		path := apisPrefix + "/" + gv.String()
		own := url.Values{"hash": {s.v3Hash(gv)}}
		index.Paths[path] = handler3.OpenAPIV3DiscoveryGroupVersion{ServerRelativeURL: openapiV3Path + "/" + path + "?" + own.Encode()}
	}
	data, err := json.Marshal(index)
	if err != nil {
		writeUnavailable(w, r, err)
		return true
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Etag", strconv.Quote(hashOf(data)))
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
	return true
}

// v3Hash identifies the document of a group version without making it.
func (s *documentSet) v3Hash(gv schema.GroupVersion) string {
	sum := sha256.New()
	for _, d := range s.versions[gv] {
		sum.Write([]byte(d.Schema.Hash))
	}
	return hex.EncodeToString(sum.Sum(nil))
}

func hashOf(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// serveV3 answers /openapi/v3/apis/<group>/<version>.
func (s *documentSet) serveV3(w http.ResponseWriter, r *http.Request, gv schema.GroupVersion) bool {
	if len(s.versions[gv]) == 0 {
		return false
	}
	document, err := s.makeV3(r.Context(), gv)
	if err != nil {
		writeUnavailable(w, r, err)
		return true
	}
	accept := r.Header.Get("Accept")
	if accept == "" {
		accept = "*/*"
	}
	w.Header().Set("Vary", "Accept")
	for _, clause := range goautoneg.ParseAccept(accept) {
		if clause.Type != "application" && clause.Type != "*" {
			continue
		}
		data, contentType := document.json, "application/json"
		switch clause.SubType {
		case openapiV3JSON, "*":
		case openapiV3Protobuf, openapiV3OldProtobuf:
			data, contentType = document.protobuf, "application/"+openapiV3Protobuf
		default:
			continue
		}
		w.Header().Set("Content-Type", contentType)
		w.Header().Set("Etag", strconv.Quote(document.etag))
		if r.URL.Query().Get("hash") == document.etag {
			w.Header().Set("Cache-Control", "public, immutable")
			w.Header().Set("Expires", time.Now().AddDate(1, 0, 0).Format(time.RFC1123))
		}
		http.ServeContent(w, r, "", document.made, bytes.NewReader(data))
		return true
	}
	w.WriteHeader(http.StatusNotAcceptable)
	return true
}

// makeV3 makes the document of a group version.
func (s *documentSet) makeV3(ctx context.Context, gv schema.GroupVersion) (*openapiDocument, error) {
	s.openapi.mu.Lock()
	defer s.openapi.mu.Unlock()
	key := v3Key{gv: gv, hash: s.v3Hash(gv)}
	if known, ok := s.openapi.v3.Get(key); ok {
		document, _ := known.(*openapiDocument)
		return document, nil
	}
	var specs []*spec3.OpenAPI
	loaded, err := s.builtIns.load(ctx)
	if err != nil {
		return nil, err
	}
	if loaded.versions[gv] {
		builtIn, err := s.builtIns.v3(ctx, gv)
		if err != nil {
			return nil, err
		}
		specs = append(specs, builtIn)
	}
	options := builder.Options{
		V2:                      false,
		IncludeSelectableFields: utilfeature.DefaultFeatureGate.Enabled(apiextensionsfeatures.CustomResourceFieldSelectors),
	}
	for _, d := range s.versions[gv] {
		spec, err := builder.BuildOpenAPIV3(d.Schema.crd, gv.Version, options)
		if err != nil {
			return nil, fmt.Errorf("making the OpenAPI document of %s: %w", d.Schema.Resource, err)
		}
		specs = append(specs, spec)
	}
	merged, err := builder.MergeSpecsV3(specs...)
	if err != nil {
		return nil, fmt.Errorf("merging the OpenAPI documents of %s: %w", gv, err)
	}
	if merged, err = openapigate.V3(merged); err != nil {
		return nil, err
	}
	document := &openapiDocument{etag: key.hash, made: time.Now()}
	if document.json, err = json.Marshal(merged); err != nil {
		return nil, fmt.Errorf("encoding the OpenAPI document of %s: %w", gv, err)
	}
	if document.protobuf, err = handler3.ToV3ProtoBinary(document.json); err != nil {
		return nil, fmt.Errorf("encoding the OpenAPI document of %s as protobuf: %w", gv, err)
	}
	s.openapi.v3.Add(key, document)
	return document, nil
}

// v3 returns the wrapped handler's document of a group version.
func (b *builtIns) v3(ctx context.Context, gv schema.GroupVersion) (*spec3.OpenAPI, error) {
	status, body := get(ctx, b.next, openapiV3Path+"/"+apisPrefix+"/"+gv.String(), http.Header{"Accept": {"application/json"}})
	if status == http.StatusNotFound {
		return nil, nil // the server has no OpenAPI
	}
	if status != http.StatusOK {
		return nil, fmt.Errorf("the built-in OpenAPI document of %s answered %d", gv, status)
	}
	var spec spec3.OpenAPI
	if err := json.Unmarshal(body, &spec); err != nil {
		return nil, fmt.Errorf("reading the built-in OpenAPI document of %s: %w", gv, err)
	}
	return &spec, nil
}
