package resource

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/duration"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/shardplane/shardplane/pkg/request"
)

// Object is a pointer to an API type.
type Object interface {
	runtime.Object
	metav1.Object
}

// Column is a column of a resource's table.
type Column[T Object] struct {
	// Name is the header.
	Name string
	// Format is "name" for the column that identifies the row; optional.
	Format string
	// Description documents the column.
	Description string
	// Priority is 0 for columns that are always shown, and 1 for those of wide output.
	Priority int32
	// Cell returns the value for an object.
	Cell func(obj T) any
}

// NameColumn returns the column with the object's name.
func NameColumn[T Object]() Column[T] {
	return Column[T]{
		Name: "Name", Format: "name",
		Description: metav1.ObjectMeta{}.SwaggerDoc()["name"],
		Cell:        func(obj T) any { return obj.GetName() },
	}
}

// AgeColumn returns the column with the time since the object's creation.
func AgeColumn[T Object]() Column[T] {
	return Column[T]{
		Name:        "Age",
		Description: metav1.ObjectMeta{}.SwaggerDoc()["creationTimestamp"],
		Cell:        func(obj T) any { return Since(obj.GetCreationTimestamp().Time) },
	}
}

// Since formats a time as the duration since then, or "<unknown>".
func Since(t time.Time) string {
	if t.IsZero() {
		return "<unknown>"
	}
	return duration.HumanDuration(time.Since(t))
}

// statusColumns are the columns of a Status, which some deletions return.
var statusColumns = func() []metav1.TableColumnDefinition {
	doc := metav1.Status{}.SwaggerDoc()
	return []metav1.TableColumnDefinition{
		{Name: "Status", Type: "string", Description: doc["status"]},
		{Name: "Reason", Type: "string", Description: doc["reason"]},
		{Name: "Message", Type: "string", Description: doc["message"]},
	}
}()

type table[T Object] struct {
	resource schema.GroupResource
	headers  []metav1.TableColumnDefinition
	columns  []Column[T]
}

func newTable[T Object](resource schema.GroupResource, columns []Column[T]) rest.TableConvertor {
	t := &table[T]{resource: resource, columns: columns, headers: make([]metav1.TableColumnDefinition, 0, len(columns))}
	for _, c := range columns {
		t.headers = append(t.headers, metav1.TableColumnDefinition{
			Name: c.Name, Type: "string", Format: c.Format, Description: c.Description, Priority: c.Priority,
		})
	}
	return t
}

func (t *table[T]) ConvertToTable(ctx context.Context, object, tableOptions runtime.Object) (*metav1.Table, error) {
	out := &metav1.Table{Rows: []metav1.TableRow{}}
	headers := t.headers
	if status, ok := object.(*metav1.Status); ok {
		headers = statusColumns
		out.Rows = append(out.Rows, metav1.TableRow{
			Cells:  []any{status.Status, string(status.Reason), status.Message},
			Object: runtime.RawExtension{Object: status},
		})
	} else if err := t.addRows(ctx, out, object); err != nil {
		return nil, err
	}
	copyListMeta(&out.ListMeta, object)
	if opt, ok := tableOptions.(*metav1.TableOptions); !ok || !opt.NoHeaders {
		out.ColumnDefinitions = headers
	}
	return out, nil
}

// addRows adds a row for an object, or one for each item of a list.
func (t *table[T]) addRows(ctx context.Context, out *metav1.Table, object runtime.Object) error {
	add := func(item runtime.Object) error {
		obj, ok := item.(T)
		if !ok {
			return t.notAcceptable(ctx)
		}
		cells := make([]any, 0, len(t.columns))
		for _, c := range t.columns {
			cells = append(cells, c.Cell(obj))
		}
		out.Rows = append(out.Rows, metav1.TableRow{Cells: cells, Object: runtime.RawExtension{Object: obj}})
		return nil
	}
	if meta.IsListType(object) {
		return meta.EachListItem(object, add)
	}
	return add(object)
}

// copyListMeta copies the metadata with which clients continue a list or a watch.
func copyListMeta(out *metav1.ListMeta, object runtime.Object) {
	if m, err := meta.ListAccessor(object); err == nil {
		out.ResourceVersion = m.GetResourceVersion()
		out.Continue = m.GetContinue()
		out.RemainingItemCount = m.GetRemainingItemCount()
		if sharded, ok := m.(metav1.ShardedListInterface); ok {
			out.ShardInfo = sharded.GetShardInfo()
		}
		return
	}
	if m, err := meta.CommonAccessor(object); err == nil {
		out.ResourceVersion = m.GetResourceVersion()
	}
}

func (t *table[T]) notAcceptable(ctx context.Context) error {
	resource := t.resource
	if info, ok := genericapirequest.RequestInfoFrom(ctx); ok {
		resource = schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}
	}
	return request.StatusError(http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable,
		fmt.Sprintf("the resource %s does not support being converted to a Table", resource))
}
