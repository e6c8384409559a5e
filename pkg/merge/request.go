package merge

import (
	"context"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/kcp-dev/logicalcluster/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// MissingAnnotation names, in bookmarks, the shards that do not answer.
const MissingAnnotation = "shardplane.io/missing-shards"

// Names of what is in queries.
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

// Shard answers for one of the shards.
type Shard struct {
	// Name is what it is called, Number what versions know it by.
	Name   string
	Number uint32
	// Get sends it the request, with another query, and returns the answer as soon as it
	// begins. Its error is that there is none.
	Get func(ctx context.Context, query url.Values) (*http.Response, error)
}

// Request is a LIST or WATCH of all shards.
type Request struct {
	// Path is what is asked for, without the query.
	Path string
	// Query is that of the client.
	Query url.Values
	// Tables is set if the client asks for Tables, as AsksForTables reports.
	Tables bool
	// Hidden reports whether merged answers do not contain the objects of a logical cluster.
	// Nil is for none.
	Hidden func(cluster logicalcluster.Name) bool
	// Partial says that the answer may be without shards that do not answer.
	Partial bool
	// Shards returns those that there are, or the answer if that cannot be said.
	Shards func() ([]Shard, error)
}

// shards returns the shards by name.
func (r *Request) shards() ([]Shard, error) {
	all, err := r.Shards()
	if err != nil {
		return nil, err
	}
	if len(all) > MaxShards {
		return nil, apierrors.NewBadRequest("there are more than " + strconv.Itoa(MaxShards) + " shards, too many for one list or watch of all: ask each shard")
	}
	slices.SortFunc(all, func(a, b Shard) int { return strings.Compare(a.Name, b.Name) })
	seen := map[uint32]string{}
	for _, s := range all {
		if other, ok := seen[s.Number]; ok {
			return nil, apierrors.NewInternalError(&sameNumberError{other, s.Name})
		}
		seen[s.Number] = s.Name
	}
	return all, nil
}

// sameNumberError says that two shards cannot be told apart in versions.
type sameNumberError struct{ one, other string }

func (e *sameNumberError) Error() string {
	return "the UIDs of the shards " + e.one + " and " + e.other + " have the same hash: register one of them anew"
}

// start returns the positions from which a request starts: none at all for "" and 0.
func (r *Request) start(shards []Shard) (Vector, error) {
	version := r.Query.Get(queryVersion)
	switch {
	case version == "" || version == "0":
		return Vector{}, nil
	case !IsVersion(version):
		if _, err := strconv.ParseUint(version, 10, 64); err != nil {
			return Vector{}, apierrors.NewBadRequest("invalid resource version " + strconv.Quote(version))
		}
		return Vector{}, expired("the resource version %s is one of a single shard: begin anew, and go on from the versions of the answers", version)
	}
	v, err := ParseVersion(version)
	if err != nil {
		return v, apierrors.NewBadRequest("invalid resource version: " + err.Error())
	}
	return v, known(v, shards)
}

// known checks that all shards of a vector are still there.
func known(v Vector, shards []Shard) error {
	for _, p := range v.positions {
		if !slices.ContainsFunc(shards, func(s Shard) bool { return s.Number == p.Shard }) {
			return expired("a shard that the resource version knows has gone: begin anew")
		}
	}
	return nil
}

// with returns the query with one that says other things.
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

// withoutObjects reports whether the client wants rows of Tables without objects. The shards are
// asked for the metadata, which contains the logical cluster of a row.
func (r *Request) withoutObjects() bool {
	return r.Tables && r.Query.Get(queryObject) == noObject
}

// isTrue reads a boolean of a query as servers do.
func isTrue(q url.Values, name string) bool {
	values, ok := q[name]
	return ok && len(values) > 0 && !strings.EqualFold(values[0], "false") && values[0] != "0"
}

// each calls ask for all shards at the same time, and returns their results in order, with
// the shards that did not answer. A shard that does not serve the resource is among neither,
// as long as others do. The first error that a shard answered is returned as it is.
func each[T any](shards []Shard, ask func(Shard) (T, error)) (answered []Shard, results []T, away missing, err error) {
	all, errs := make([]T, len(shards)), make([]error, len(shards))
	var asking sync.WaitGroup
	for i := range shards {
		asking.Go(func() { all[i], errs[i] = ask(shards[i]) })
	}
	asking.Wait()
	away = missing{}
	var unserved error
	for i, s := range shards {
		switch status := statusOf(errs[i]); {
		case errs[i] == nil:
			answered, results = append(answered, s), append(results, all[i])
		case isCode(errs[i], http.StatusNotFound):
			unserved = errs[i]
		case status != nil:
			err = cmpOr(err, errs[i])
		default:
			away[s.Name] = errs[i]
		}
	}
	if err == nil && len(answered) == 0 && len(away) == 0 {
		err = unserved
	}
	return answered, results, away, err
}

func cmpOr(first, second error) error {
	if first != nil {
		return first
	}
	return second
}

// allowed returns the answer if a request cannot go without the shards that are away.
func (r *Request) allowed(away missing, answered int) error {
	if len(away) > 0 && (!r.Partial || answered == 0) {
		return away.status()
	}
	return nil
}

// warn names the shards that an answer is without.
func warn(header http.Header, away missing) {
	if len(away) > 0 {
		header.Add("Warning", `299 - "shards that do not answer are missing: `+strings.Join(away.names(), ", ")+`"`)
	}
}
