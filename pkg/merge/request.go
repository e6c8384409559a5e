package merge

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/munnerz/goautoneg"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// MissingAnnotation lists the unreachable shards of a watch of all shards.
//
//reference:metadata bookmarks | front-proxy
const MissingAnnotation = "shardplane.io/missing-shards"

// Query parameters.
const (
	queryVersion   = "resourceVersion"
	queryMatch     = "resourceVersionMatch"
	queryContinue  = "continue"
	queryLimit     = "limit"
	queryInitial   = "sendInitialEvents"
	queryBookmarks = "allowWatchBookmarks"
	queryTimeout   = "timeoutSeconds"
	queryObject    = "includeObject"
	// noObject is the value of queryObject for rows of Tables without objects.
	noObject = string(metav1.IncludeNone)
)

// jsonType is the only encoding in which responses are merged.
const jsonType = "application/json"

// sealBytes is the size of the digest in continue tokens.
const sealBytes = 12

// Shard sends requests to one shard.
type Shard struct {
	// Name is the name of the shard, Number its number in versions.
	Name   string
	Number uint32
	// Get sends the request with another query, and returns as soon as the response begins. It fails if there is none.
	Get func(ctx context.Context, query url.Values) (*http.Response, error)
}

// Request is a LIST or WATCH of all shards.
type Request struct {
	// Path is the path of the request, without the query.
	Path string
	// Query is the client's query.
	Query url.Values
	// Tables is true if the client requests Tables, see AcceptsTables.
	Tables bool
	// Hidden reports whether merged responses exclude the objects of a logical cluster. It may be nil.
	Hidden func(cluster logicalcluster.Name) bool
	// Partial allows a response without unreachable shards.
	Partial bool
	// Shards returns the shards, or an error for the client if they are not known.
	Shards func() ([]Shard, error)
}

// shards returns the shards, sorted by name.
func (r *Request) shards() ([]Shard, error) {
	all, err := r.Shards()
	if err != nil {
		return nil, err
	}
	if len(all) > MaxShards {
		return nil, apierrors.NewBadRequest("there are more than " + strconv.Itoa(MaxShards) + " shards, too many for one merged list or watch: use a separate request for each shard")
	}
	slices.SortFunc(all, func(a, b Shard) int { return strings.Compare(a.Name, b.Name) })
	seen := map[uint32]string{}
	for _, s := range all {
		if other, ok := seen[s.Number]; ok {
			return nil, apierrors.NewInternalError(fmt.Errorf("the UIDs of the shards %s and %s have the same hash: delete one of their Shard objects and create it again", other, s.Name))
		}
		seen[s.Number] = s.Name
	}
	return all, nil
}

// start returns the positions from which a request starts, which are empty for "" and "0".
func (r *Request) start(shards []Shard) (Vector, error) {
	version := r.Query.Get(queryVersion)
	switch {
	case version == "" || version == "0":
		return Vector{}, nil
	case !IsVersion(version):
		if _, err := strconv.ParseUint(version, 10, 64); err != nil {
			return Vector{}, apierrors.NewBadRequest("invalid resource version " + strconv.Quote(version))
		}
		return Vector{}, expired("the resource version %s belongs to a single shard: list again, and use the versions of the response", version)
	}
	v, err := ParseVersion(version)
	if err != nil {
		return v, apierrors.NewBadRequest("invalid resource version: " + err.Error())
	}
	return v, known(v, shards)
}

// known checks that all shards of a vector still exist.
func known(v Vector, shards []Shard) error {
	for number := range v {
		if indexOf(shards, number) < 0 {
			return expired("a shard of the resource version was removed: list again")
		}
	}
	return nil
}

// indexOf returns the index of the shard with a number, or -1.
func indexOf(shards []Shard, number uint32) int {
	return slices.IndexFunc(shards, func(s Shard) bool { return s.Number == number })
}

// with returns the query with changed parameters, given as pairs of name and value. An empty value removes the parameter.
func (r *Request) with(change ...string) url.Values {
	q := make(url.Values, len(r.Query)+len(change)/2) //nolint:mnd // pairs
	maps.Copy(q, r.Query)
	q.Del("pretty")
	if r.withoutObjects() {
		q.Set(queryObject, string(metav1.IncludeMetadata))
	}
	for i := 0; i+1 < len(change); i += 2 {
		if change[i+1] == "" {
			q.Del(change[i])
		} else {
			q.Set(change[i], change[i+1])
		}
	}
	return q
}

// withoutObjects reports whether the client requests rows of Tables without objects. The shards must return the
// metadata, which contains the logical cluster of a row.
func (r *Request) withoutObjects() bool {
	return r.Tables && r.Query.Get(queryObject) == noObject
}

// isTrue parses a boolean query parameter like Kubernetes servers.
func isTrue(q url.Values, name string) bool {
	values := q[name]
	return len(values) > 0 && !strings.EqualFold(values[0], "false") && values[0] != "0"
}

// each calls send concurrently for all shards, returns the results in order, and adds the unreachable shards to a set.
// Shards that do not serve the resource are in neither. It returns the first API error of a shard, or an error if no
// shard serves the resource, or the request requires the unreachable shards.
func each[T any](r *Request, shards []Shard, unreachable missing, send func(Shard) (T, error)) (responded []Shard, results []T, err error) {
	all, errs := make([]T, len(shards)), make([]error, len(shards))
	var wg sync.WaitGroup
	for i := range shards {
		wg.Go(func() { all[i], errs[i] = send(shards[i]) })
	}
	wg.Wait()
	var unserved error
	for i, s := range shards {
		switch status := statusOf(errs[i]); {
		case errs[i] == nil:
			responded, results = append(responded, s), append(results, all[i])
		case apierrors.IsNotFound(errs[i]):
			unserved = errs[i]
		case status != nil:
			err = cmp.Or(err, errs[i])
		default:
			unreachable[s.Name] = errs[i]
		}
	}
	switch {
	case err != nil:
	case len(unreachable) == 0 && len(responded) == 0:
		err = unserved
	case len(unreachable) > 0 && (!r.Partial || len(responded) == 0):
		err = unreachable.status()
	}
	return responded, results, err
}

// warn adds a warning with the unreachable shards.
func warn(header http.Header, unreachable missing) {
	if len(unreachable) > 0 {
		header.Add("Warning", `299 - "unreachable shards are missing: `+strings.Join(unreachable.names(), ", ")+`"`)
	}
}

// Accept returns the clauses of an Accept header that can be merged: those for JSON, including Tables and
// metadata. ok is false if there is none.
func Accept(header string) (accept string, ok bool) {
	if header == "" {
		return jsonType, true
	}
	var kept []string
	for clause := range strings.SplitSeq(header, ",") {
		mediaType, params, err := mime.ParseMediaType(clause)
		if err != nil {
			continue
		}
		switch mediaType {
		case jsonType, "*/*", "application/*":
		default:
			continue
		}
		delete(params, "stream")
		delete(params, "pretty")
		kept = append(kept, mime.FormatMediaType(jsonType, params))
	}
	return strings.Join(kept, ","), len(kept) > 0
}

// AcceptsTables reports whether servers respond to an Accept header with Tables, i.e. whether the first clause
// that they support specifies Tables.
func AcceptsTables(accept string) bool {
	for _, clause := range goautoneg.ParseAccept(accept) {
		as, group, version := clause.Params["as"], clause.Params["g"], clause.Params["v"]
		if as == "" && group == "" && version == "" {
			return false
		}
		if group != metav1.GroupName || version != "v1" && version != "v1beta1" {
			continue
		}
		switch as {
		case "Table":
			return true
		case "PartialObjectMetadata", "PartialObjectMetadataList":
			return false
		}
	}
	return false
}

// cursor is the content of a continue token, the position of the next page. Any front-proxy can continue it.
type cursor struct {
	// Version is the list's, which determines its shards. It contains no shard that is read at its latest version.
	Version string `json:"v"`
	// Shard is the number of the first shard of the next page, and Token the shard's own continue token.
	Shard uint32 `json:"s"`
	Token string `json:"t,omitempty"`
}

// token returns the continue token. Its digest needs no secret, because each shard verifies its own token.
func (r *Request) token(c cursor) string {
	raw, _ := json.Marshal(c) //nolint:errchkjson // strings and a number
	text := base64.RawURLEncoding.EncodeToString(raw)
	return versionPrefix + text + "." + r.seal(text)
}

// cursor parses a continue token of the client.
func (r *Request) cursor(token string) (c cursor, v Vector, err error) {
	refuse := func(why string) error { return apierrors.NewBadRequest("invalid continue token: " + why) }
	text, ok := strings.CutPrefix(token, versionPrefix)
	text, sum, sealed := strings.Cut(text, ".")
	if !ok || !sealed {
		return c, v, refuse("not a token of a merged list")
	}
	if sum != r.seal(text) {
		return c, v, refuse("it was changed, or issued for another request")
	}
	raw, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil {
		return c, v, refuse("it was changed")
	}
	if err := json.Unmarshal(raw, &c); err != nil {
		return c, v, refuse("it was changed")
	}
	if v, err = ParseVersion(c.Version); err != nil {
		return c, v, refuse(err.Error())
	}
	return c, v, nil
}

// seal returns a digest of a token and its list request.
func (r *Request) seal(text string) string {
	sum := sha256.New()
	for _, part := range []string{r.Path, r.Query.Get("labelSelector"), r.Query.Get("fieldSelector"), r.Query.Get("shardSelector"), text} {
		sum.Write([]byte(part))
		sum.Write([]byte{0})
	}
	return base64.RawURLEncoding.EncodeToString(sum.Sum(nil)[:sealBytes])
}
