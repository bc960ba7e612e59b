// Package directory serves the resources of an authority from the files of one
// directory.
//
// # Files
//
// The ending of a file's name is its format. Files with other endings, hidden files and
// subdirectories are ignored.
//
//	.yaml .yml              any number of documents, each a message or a list of messages
//	.json                   one message, or a list of messages
//	.textpb .txtpb .pbtxt   one message, in protobuf's text format
//	.pb                     one message, in protobuf's wire format
//
// A message is a DiscoveryResponse, a discovery Resource (which can give a
// resource a version, or a name) or a bare resource. The format determines how they are
// distinguished:
//
//   - YAML and JSON, which are read as Envoy reads them (package envoyjson): a bare resource has "@type". Without
//     it, a message with "resources" or "version_info" is a DiscoveryResponse, and one
//     with "resource" is a Resource.
//   - Text: a comment `# proto-message: envoy.config.cluster.v3.Cluster` before
//     everything else names the message, which may be any. Without it, the message is the first of
//     DiscoveryResponse, Resource and Any as which the text can be parsed.
//   - Wire: an Any, if field 1 begins with "type.googleapis.com/"; otherwise a
//     Resource, if it has a name (field 3, a string); otherwise a DiscoveryResponse.
//
// Only a Resource gives a resource a version. The version_info of a
// DiscoveryResponse is not used, as a file can be edited without changing it.
//
// # Collections and redirects
//
// A resource with an xdstp name is a member of the glob collection of its directory:
// xdstp://a/type/foo/x of xdstp://a/type/foo/*. Old-style names are in the wildcard.
//
// A redirect is a Resource whose resource is an xds.core.v3.ResourceLocator. Its type is
// that in its xdstp name, or that of its DiscoveryResponse. It must
// lead to one resource of that type, or to an entry of a list collection of such resources.
// Neither a redirect nor a list collection has a name inside, so both need a Resource around them.
//
// # Changes
//
// The relay reads the directory again when something in it changes, and from time to
// time, because network file systems do not notify of changes. It applies all changes
// together, with one update per type and scope. If a file is bad, its last
// good resources stay, and if the directory cannot be read, all of them stay. Everything
// else goes on. Write files elsewhere and rename them into place, or swap the
// whole directory as Kubernetes does with a ConfigMap: half a YAML file is often
// valid YAML.
//
// The directory has all resources of its authority: a name that is not in it is absent
// at once, unless it may be in a file that could never be read.
package directory
