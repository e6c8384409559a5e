// Package versions stores custom resources. There is one raw store with one watch cache for each resource,
// shared by all schemas, and on top of it a store for each version of each schema, which runs the schema's
// codec. Version stores cache decoded objects within a common budget, and limit the calls of conversion
// webhooks, which belong to tenants.
package versions
