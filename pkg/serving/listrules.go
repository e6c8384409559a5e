package serving

import (
	"bytes"
	"fmt"
	"mime"
	"net/http"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1beta1 "k8s.io/apimachinery/pkg/apis/meta/v1beta1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	apisharding "k8s.io/apimachinery/pkg/sharding"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/klog/v2"
	"k8s.io/utils/lru"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/hashrange"
	"github.com/shardplane/shardplane/pkg/request/shardselector"
)

// WithListRules returns the filter that rejects large selectors and unsupported shard selectors (400). It passes the
// parsed shard selector on, and adds shardInfo to tables and metadata lists. It must come after authorization.
func WithListRules(next http.Handler, s runtime.NegotiatedSerializer) http.Handler {
	selectors := lru.New(rememberedSelectors)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, ok := genericapirequest.RequestInfoFrom(r.Context())
		selects := ok && info.IsResourceRequest && (info.Verb == "list" || info.Verb == "watch" || info.Verb == "deletecollection")
		if !selects || r.URL.RawQuery == "" { // most requests have no query
			next.ServeHTTP(w, r)
			return
		}
		if err := checkSelectors(r); err != nil {
			respond(w, r, s, err)
			return
		}
		expression := r.URL.Query().Get(shardSelectorParameter)
		if expression == "" {
			next.ServeHTTP(w, r)
			return
		}
		selector, err := checkShardSelector(selectors, expression, info.Verb)
		if err != nil {
			respond(w, r, s, err)
			return
		}
		if selector == nil || keepsSelector(info.Verb, selector) {
			next.ServeHTTP(w, r)
			return
		}
		r = withParsedSelector(r, selector)
		if info.Verb == "list" && !selector.Empty() && requestsConversion(r) {
			serveWithShardInfo(next, w, r, selector.String())
			return
		}
		next.ServeHTTP(w, r)
	})
}

const (
	// maxRequirements and maxSelectorBytes limit selectors, and maxRequirements the ranges of a shard
	// selector. Each event is matched against the selectors of all watches of its resource.
	//
	//reference:limit request | selector: requirements, or ranges of a shardSelector | 400
	maxRequirements = 128
	//reference:limit request | selector: length | 400
	maxSelectorBytes = 16 << 10
	// partsPerSlot is how many requirements cost as much as a watch without selector.
	partsPerSlot   = 4
	rangeSeparator = "||"
	// shortQuery is the length up to which a query cannot exceed a limit.
	shortQuery = maxRequirements
)

func checkSelectors(r *http.Request) error {
	if len(r.URL.RawQuery) <= shortQuery {
		return nil
	}
	query := r.URL.Query()
	for _, parameter := range []string{"labelSelector", "fieldSelector", shardSelectorParameter} {
		for _, selector := range query[parameter] {
			if n := len(selector); n > maxSelectorBytes {
				return apierrors.NewBadRequest(fmt.Sprintf("%s has %d bytes, at most %d allowed: use a label that all these objects have", parameter, n, maxSelectorBytes))
			}
			if n := requirements(parameter, selector); n > maxRequirements {
				return apierrors.NewBadRequest(fmt.Sprintf("%s has %d requirements, at most %d allowed: use a label that all these objects have", parameter, n, maxRequirements))
			}
		}
	}
	return nil
}

// requirements returns the number of ranges in a shard selector, or of requirements in another
// selector. Commas in parentheses separate values of one requirement, which cost a tenth as much.
func requirements(parameter, selector string) int {
	if parameter == shardSelectorParameter {
		return 1 + strings.Count(selector, rangeSeparator)
	}
	n, depth := 1, 0
	for _, c := range selector {
		switch {
		case c == '(':
			depth++
		case c == ')':
			depth--
		case c == ',' && depth <= 0:
			n++
		}
	}
	return n
}

// watchSlots returns the cost of a watch. Each event is matched against its selectors, and each of their values.
func watchSlots(r *http.Request) int64 {
	parts, query := 0, r.URL.Query()
	for parameter, separator := range map[string]string{"labelSelector": ",", "fieldSelector": ",", shardSelectorParameter: rangeSeparator} {
		for _, selector := range query[parameter] {
			parts += 1 + strings.Count(selector, separator)
		}
	}
	return 1 + int64(parts/partsPerSlot)
}

const (
	shardSelectorParameter = "shardSelector"
	// rememberedSelectors limits the cache of parsed selectors. Parsing takes longer than all other filters.
	rememberedSelectors = 1024
	// longestRemembered excludes long selectors, which are rare, to save memory.
	longestRemembered = 4096
)

// checkShardSelector returns the parsed selector. It rejects malformed ones, for which upstream returns 500. While
// the feature gate is disabled, the selector is ignored like any unknown parameter, except for DELETECOLLECTION,
// which would delete the objects of all shards.
func checkShardSelector(parsed *lru.Cache, expression, verb string) (apisharding.Selector, error) {
	if !utilfeature.DefaultFeatureGate.Enabled(features.ShardedListAndWatch) {
		if verb != "deletecollection" {
			return nil, nil
		}
		return nil, apierrors.NewBadRequest("shardSelector is not supported, because the feature gate ShardedListAndWatch is disabled: all objects of the collection would be deleted")
	}
	if cached, ok := parsed.Get(expression); ok {
		return cached.(apisharding.Selector), nil //nolint:forcetypeassert // all entries are added below
	}
	selector, err := shardselector.Parse(expression)
	if err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("invalid shardSelector: %v", err))
	}
	if len(expression) <= longestRemembered {
		parsed.Add(expression, selector)
	}
	return selector, nil
}

// withParsedSelector moves the selector from the query into the context, so that it is not parsed
// again, which would take 28 µs and 250 allocations.
func withParsedSelector(r *http.Request, selector apisharding.Selector) *http.Request {
	r = r.WithContext(request.WithShardSelector(r.Context(), selector))
	rest := *r.URL
	query := rest.Query()
	query.Del(shardSelectorParameter)
	rest.RawQuery = query.Encode()
	r.URL = &rest
	return r
}

// keepsSelector reports whether the selector must stay in the query: for DELETECOLLECTION, so that it cannot be lost
// on the way to the storage, unless the key is the logical cluster, which upstream's registry does not support.
func keepsSelector(verb string, selector apisharding.Selector) bool {
	if verb != "deletecollection" {
		return false
	}
	requirements := selector.Requirements()
	return len(requirements) == 0 || requirements[0].Key != hashrange.Cluster.Path()
}

var metaCodecs = func() serializer.CodecFactory {
	scheme := runtime.NewScheme()
	utilruntime.Must(metav1.AddMetaToScheme(scheme))
	utilruntime.Must(metav1beta1.AddMetaToScheme(scheme))
	return serializer.NewCodecFactory(scheme)
}()

// serveWithShardInfo adds shardInfo to a sharded list as Table or PartialObjectMetadataList. Upstream omits it in
// both, so that clients would mistake a part for the complete list. The response is decoded and encoded again.
func serveWithShardInfo(next http.Handler, w http.ResponseWriter, r *http.Request, selector string) {
	plain := r.Clone(r.Context())
	plain.Header.Del("Accept-Encoding") // the response is decoded here
	response := &bufferedResponse{header: w.Header()}
	next.ServeHTTP(response, plain)
	body := response.body.Bytes()
	if response.code == http.StatusOK {
		if completed, err := addShardInfo(w.Header().Get("Content-Type"), body, selector); err != nil {
			klog.ErrorS(err, "Failed to add shardInfo to the response of a sharded list")
		} else {
			body = completed
		}
	}
	if w.Header().Get("Content-Length") != "" {
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	}
	if response.code != 0 {
		w.WriteHeader(response.code)
	}
	_, _ = w.Write(body)
}

func requestsConversion(r *http.Request) bool {
	for _, accept := range r.Header.Values("Accept") {
		if strings.Contains(accept, "as=Table") || strings.Contains(accept, "as=PartialObjectMetadataList") {
			return true
		}
	}
	return false
}

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
		return body, nil // the response is the list itself
	}
	if err != nil {
		return nil, fmt.Errorf("decoding the response: %w", err)
	}
	list, ok := obj.(metav1.ShardedListInterface)
	if !ok || list.GetShardInfo() != nil {
		return body, nil
	}
	list.SetShardInfo(&metav1.ShardInfo{Selector: selector})
	var out bytes.Buffer
	if err := info.Serializer.Encode(obj, &out); err != nil {
		return nil, fmt.Errorf("encoding the response: %w", err)
	}
	return out.Bytes(), nil
}
