package frontproxy

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/shardplane/shardplane/pkg/authn"
	"github.com/shardplane/shardplane/pkg/request"
)

const clusterPlaceholder = "{cluster}"

type mappingEntry struct {
	// path is as in the file, segments are its parts between slashes, none for "/".
	path                                 string
	segments                             []string
	backend, serverCA                    string
	clientCert, clientKey                string
	userHeader, groupHeader, extraPrefix string
}

func (e *mappingEntry) fields() map[string]*string {
	return map[string]*string{
		"path": &e.path, "backend": &e.backend, "backend_server_ca": &e.serverCA,
		"proxy_client_cert": &e.clientCert, "proxy_client_key": &e.clientKey,
		"user_header": &e.userHeader, "group_header": &e.groupHeader, "extra_header_prefix": &e.extraPrefix,
	}
}

// readMappings reads the mapping file. clusters is its entry for /clusters/, which specifies the
// certificates for shards, or nil. The error lists all problems.
func readMappings(file string) (entries []*mappingEntry, clusters *mappingEntry, err error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, nil, err
	}
	list, err := yamlList(data)
	if err != nil {
		return nil, nil, err
	}
	var errs []error
	taken := map[string]int{}
	for i, raw := range list {
		e := &mappingEntry{}
		if found := e.read(raw); len(found) > 0 {
			for _, err := range found {
				errs = append(errs, fmt.Errorf("entry %d (path %q): %w", i+1, e.path, err))
			}
			continue
		}
		shape := strings.Join(e.shape(), "/")
		if other, twice := taken[shape]; twice {
			errs = append(errs, fmt.Errorf("entry %d (path %q): path: entry %d is for the same paths", i+1, e.path, other))
			continue
		}
		taken[shape] = i + 1
		if slices.Index(e.segments, clustersSegment) == 0 {
			clusters = e
			continue
		}
		entries = append(entries, e)
	}
	slices.SortStableFunc(entries, moreSpecific)
	return entries, clusters, errors.Join(errs...)
}

func yamlList(data []byte) (list []json.RawMessage, err error) {
	reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	found := false
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		content, err := yaml.YAMLToJSONStrict(document)
		switch {
		case err != nil:
			return nil, err
		case string(content) == "null":
			continue
		case found:
			return nil, errors.New("more than one YAML document")
		}
		found = true
		if err := json.Unmarshal(content, &list); err != nil {
			return nil, errors.New("not a YAML list of entries such as \"- path: /services/example\"")
		}
	}
	if !found {
		return nil, errors.New("the file is empty: use [] for an empty list")
	}
	return list, nil
}

func (e *mappingEntry) read(raw json.RawMessage) (errs []error) {
	var values map[string]any
	if err := json.Unmarshal(raw, &values); err != nil || values == nil {
		return []error{errors.New("not a mapping with fields")}
	}
	fields := e.fields()
	for _, name := range slices.Sorted(maps.Keys(values)) {
		text, isText := values[name].(string)
		switch to := fields[name]; {
		case to == nil:
			errs = append(errs, fmt.Errorf("unknown field %q, the fields are %s", name, strings.Join(slices.Sorted(maps.Keys(fields)), ", ")))
		case !isText:
			errs = append(errs, fmt.Errorf("%s: must be a string", name))
		default:
			*to = text
		}
	}
	e.userHeader = http.CanonicalHeaderKey(cmp.Or(e.userHeader, authn.HeaderUser))
	e.groupHeader = http.CanonicalHeaderKey(cmp.Or(e.groupHeader, authn.HeaderGroup))
	e.extraPrefix = http.CanonicalHeaderKey(cmp.Or(e.extraPrefix, authn.HeaderExtraPrefix))
	return slices.Concat(errs, e.validatePath(), e.validateServer(), e.validateHeaders())
}

func (e *mappingEntry) validatePath() (errs []error) {
	wrong := func(format string, args ...any) []error {
		return append(errs, fmt.Errorf("path: "+format, args...))
	}
	e.segments = strings.Split(strings.Trim(e.path, "/"), "/")
	if !strings.HasPrefix(e.path, "/") || strings.ContainsAny(e.path, "?#%") {
		return wrong("must start with a slash, without escapes and query")
	}
	if e.path == "/" {
		e.segments = nil
		return nil
	}
	for i, segment := range e.segments {
		name, isPlaceholder := placeholder(segment)
		switch {
		case segment == "" || segment == "." || segment == "..":
			return wrong("contains an empty segment or dots")
		case isPlaceholder && (i == 0 || name == ""):
			return wrong("%s: a placeholder such as {name} needs a name, and cannot be the first segment: use / for all remaining paths", segment)
		case !isPlaceholder && strings.ContainsAny(segment, "{}"):
			return wrong("%s: a placeholder must be an entire segment, e.g. {name}", segment)
		case segment == clusterPlaceholder && slices.Index(e.segments, clusterPlaceholder) < i:
			return wrong("contains %s twice", clusterPlaceholder)
		}
	}
	switch first := e.segments[0]; {
	case first == clustersSegment && len(e.segments) > 1:
		return wrong("paths below /clusters/ belong to the shards; an entry for /clusters/ itself specifies the certificates for them")
	case slices.Contains(ownSegments, first):
		return wrong("the front-proxy serves /%s itself", first)
	}
	return nil
}

func (e *mappingEntry) validateServer() (errs []error) {
	if base, err := url.Parse(e.backend); err != nil || base.Scheme != "https" || base.Host == "" || base.User != nil || base.RawQuery != "" || base.Fragment != "" {
		errs = append(errs, fmt.Errorf("backend: %q is not an https URL such as https://host:port, without user, query and fragment", e.backend))
	}
	for _, required := range []struct{ name, value, why string }{
		{"backend_server_ca", e.serverCA, "it is needed to verify the server"},
		{"proxy_client_cert", e.clientCert, "it authorizes the front-proxy to identify users to the server"},
		{"proxy_client_key", e.clientKey, "it is the key of proxy_client_cert"},
	} {
		if required.value == "" {
			errs = append(errs, fmt.Errorf("%s is required: %s", required.name, required.why))
		}
	}
	return errs
}

func (e *mappingEntry) validateHeaders() (errs []error) {
	for _, field := range []struct{ name, value string }{
		{"user_header", e.userHeader}, {"group_header", e.groupHeader}, {"extra_header_prefix", e.extraPrefix},
	} {
		prefix := field.name == "extra_header_prefix"
		if !httpguts.ValidHeaderFieldName(field.value) {
			errs = append(errs, fmt.Errorf("%s: %q is not a valid header name", field.name, field.value))
			continue
		}
		for _, used := range usedHeaders {
			if overlap(used, field.value, prefix) {
				errs = append(errs, fmt.Errorf("%s: %q covers %q, which clients use and would be removed from all requests", field.name, field.value, used))
			}
		}
	}
	switch {
	case e.userHeader == e.groupHeader:
		errs = append(errs, fmt.Errorf("group_header: %q is the header of the user", e.groupHeader))
	case slices.ContainsFunc([]string{e.userHeader, e.groupHeader, authn.HeaderUID}, func(name string) bool { return strings.HasPrefix(name, e.extraPrefix) }):
		errs = append(errs, fmt.Errorf("extra_header_prefix: the headers of the user, the groups or the UID must not begin with %q", e.extraPrefix))
	}
	if slices.Index(e.segments, clustersSegment) == 0 && (e.userHeader != authn.HeaderUser || e.groupHeader != authn.HeaderGroup || e.extraPrefix != authn.HeaderExtraPrefix) {
		errs = append(errs, errors.New("user_header, group_header, extra_header_prefix: shards support only the default headers"))
	}
	return errs
}

var clustersSegment = strings.Trim(request.Clusters.Prefix, "/")

var ownSegments = []string{"metrics", "debug", "livez", "readyz", "healthz"}

// usedHeaders are client headers that have a meaning. A trailing hyphen stands for all headers with this prefix.
var usedHeaders = []string{
	"Accept", "Accept-", "Audit-Id", "Authorization", "Cache-Control", "Connection", "Content-", "Cookie", "Date", "Expect", "Host", "If-", "Impersonate-", "Keep-Alive",
	"Origin", "Proxy-", "Range", "Referer", "Sec-", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "User-Agent", "Via", "X-Forwarded-", request.InternalHeaderPrefix, "X-Stream-Protocol-Version",
}

func overlap(used, named string, prefix bool) bool {
	return used == named || strings.HasSuffix(used, "-") && strings.HasPrefix(named, used) || prefix && strings.HasPrefix(used, named)
}

func placeholder(segment string) (name string, ok bool) {
	name, ok = strings.CutPrefix(segment, "{")
	if ok {
		name, ok = strings.CutSuffix(name, "}")
	}
	return name, ok && !strings.ContainsAny(name, "{}")
}

func (e *mappingEntry) shape() []string {
	shape := slices.Clone(e.segments)
	for i, segment := range shape {
		if _, ok := placeholder(segment); ok {
			shape[i] = ""
		}
	}
	return shape
}

func moreSpecific(a, b *mappingEntry) int {
	return cmp.Or(cmp.Compare(len(b.segments), len(a.segments)), slices.Compare(b.shape(), a.shape()))
}

func (e *mappingEntry) fits(segments []string) bool {
	if len(segments) < len(e.segments) {
		return false
	}
	for i, segment := range e.segments {
		if _, ok := placeholder(segment); ok && segments[i] != "" {
			continue
		}
		if segment != segments[i] {
			return false
		}
	}
	return true
}
