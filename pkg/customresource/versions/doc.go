// Package versions stores custom resources: one raw store with one watch cache
// for each resource, shared by all schemas, and a view of it for each version of
// each schema, which runs the schema's codec on the objects that pass. Views
// remember what they decoded, all together within a budget; conversion webhooks,
// which are tenants', are called within bounds.
package versions
