package board

import (
	"context"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/sharding"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/request"
)

// View is what a reader shows.
type Content struct {
	Resource schema.GroupResource
	// Show returns what is shown of an object, with a resourceVersion. It must not change the
	// object. Of nil it returns an object without content.
	Show func(obj client.Object, version string) client.Object
	// Fields are those by which objects can be selected.
	Fields func(obj client.Object) fields.Set
	// List returns a list of what is shown.
	List func(meta metav1.ListMeta, shown []client.Object) runtime.Object
}

// Reader serves a view of a board to upstream's handlers.
type Reader struct {
	rest.TableConvertor

	view  Content
	board *Board
}

var (
	_ rest.Getter  = &Reader{}
	_ rest.Lister  = &Reader{}
	_ rest.Watcher = &Reader{}
)

// Read returns a reader of the board.
func (b *Board) Read(v Content) *Reader {
	return &Reader{TableConvertor: rest.NewDefaultTableConvertor(v.Resource), view: v, board: b}
}

// New implements rest.Storage.
func (r *Reader) New() runtime.Object { return r.view.Show(nil, "") }

// NewList implements rest.Lister.
func (r *Reader) NewList() runtime.Object { return r.view.List(metav1.ListMeta{}, nil) }

// Destroy implements rest.Storage.
func (*Reader) Destroy() {}

// Get implements rest.Getter. The newest that there is answers for any version.
func (r *Reader) Get(_ context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	if err := r.board.known(); err != nil {
		return nil, err
	}
	if options != nil {
		if err := r.reached(options.ResourceVersion); err != nil {
			return nil, err
		}
	}
	if e := r.board.get(name); e.Object != nil {
		return r.show(e), nil
	}
	return nil, apierrors.NewNotFound(r.view.Resource, name)
}

// show returns what is shown of an object.
func (r *Reader) show(e entry) client.Object {
	return r.view.Show(e.Object, strconv.FormatInt(e.version, 10))
}

// reached refuses a version that is not known yet.
func (r *Reader) reached(version string) error {
	wanted, err := parse(version)
	if now := r.board.newest(); err == nil && wanted > now {
		err = storage.NewTooLargeResourceVersionError(uint64(wanted), uint64(now), 1) //nolint:gosec // they are times
	}
	return err
}

// parse returns a version that a client gives; 0 if it gives none.
func parse(version string) (int64, error) {
	if version == "" {
		return 0, nil
	}
	wanted, err := strconv.ParseInt(version, 10, 64)
	if err != nil || wanted < 0 {
		return 0, apierrors.NewBadRequest("invalid resourceVersion " + strconv.Quote(version))
	}
	return wanted, nil
}

// selection is what a request selects.
type selection struct {
	labels labels.Selector
	fields fields.Selector
	shards sharding.Selector
	// of returns the fields of an object.
	of func(client.Object) fields.Set
}

func (r *Reader) selection(ctx context.Context, options *metainternalversion.ListOptions) selection {
	return selection{options.LabelSelector, options.FieldSelector, request.ShardSelectorFrom(ctx), r.view.Fields}
}

// all reports whether every object is selected.
func (s *selection) all() bool {
	return (s.labels == nil || s.labels.Empty()) && (s.fields == nil || s.fields.Empty()) && (s.shards == nil || s.shards.Empty())
}

// has reports whether there is an object that is selected.
func (s *selection) has(e entry) bool {
	switch {
	case e.Object == nil,
		s.labels != nil && !s.labels.Matches(labels.Set(e.GetLabels())),
		s.fields != nil && !s.fields.Empty() && !s.fields.Matches(s.of(e.Object)):
		return false
	case s.shards == nil || s.shards.Empty():
		return true
	}
	matches, err := s.shards.Matches(e.Object)
	return err == nil && matches
}

// expired is the answer to a version, or a page, that is not known any more, or is another board's.
func expired(what string) error {
	return apierrors.NewResourceExpired(what + " is too old, or of another server: list again")
}

// List implements rest.Lister.
func (r *Reader) List(ctx context.Context, options *metainternalversion.ListOptions) (runtime.Object, error) {
	if err := r.board.known(); err != nil {
		return nil, err
	}
	version, from, err := r.start(options)
	if err != nil {
		return nil, err
	}
	selected := r.selection(ctx, options)
	var page []entry
	left, next := int64(0), ""
	known := r.board.at(version, from, func(name string, e entry) bool {
		switch {
		case !selected.has(e):
		case options.Limit <= 0 || int64(len(page)) < options.Limit:
			page = append(page, e)
		case next == "":
			next, left = name, 1
		default:
			left++
		}
		return next == "" || selected.all()
	})
	if !known {
		return nil, expired("the version of the list")
	}
	meta := metav1.ListMeta{ResourceVersion: strconv.FormatInt(version, 10)}
	if next != "" {
		if meta.Continue, err = storage.EncodeContinue(keyPrefix+next, keyPrefix, version); err != nil {
			return nil, apierrors.NewInternalError(err)
		}
		if selected.all() {
			meta.RemainingItemCount = &left
		}
	}
	shown := make([]client.Object, 0, len(page))
	for _, e := range page {
		shown = append(shown, r.show(e))
	}
	return r.view.List(meta, shown), nil
}

// keyPrefix is before names in the tokens of pages.
const keyPrefix = "/"

// start returns which version a list is of, and the name that it starts from.
func (r *Reader) start(options *metainternalversion.ListOptions) (version int64, from string, err error) {
	if options.Continue != "" {
		key, at, err := storage.DecodeContinue(options.Continue, keyPrefix)
		if err != nil {
			return 0, "", apierrors.NewBadRequest(err.Error())
		}
		return at, key[len(keyPrefix):], nil
	}
	wanted, err := parse(options.ResourceVersion)
	switch {
	case err != nil:
		return 0, "", err
	case options.ResourceVersionMatch == metav1.ResourceVersionMatchExact:
		return wanted, "", nil
	}
	return r.board.newest(), "", r.reached(options.ResourceVersion)
}
