// A client of gRPC for Node.js that proves who it is: it opens one stream to the relay over TLS,
// sends one request, and prints what comes of it, a line of JSON each.
'use strict';

const fs = require('fs');
const grpc = require('@grpc/grpc-js');

const method = '/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources';

const options = JSON.parse(process.argv[2]);
const read = (name) => (options[name] ? fs.readFileSync(options[name]) : null);
const say = (event) => console.log(JSON.stringify(event));

let credentials = grpc.credentials.createSsl(read('ca'), read('key'), read('cert'));
if (options.token) {
  const token = grpc.credentials.createFromMetadataGenerator((_, callback) => {
    const metadata = new grpc.Metadata();
    metadata.set('authorization', `Bearer ${options.token}`);
    callback(null, metadata);
  });
  credentials = grpc.credentials.combineChannelCredentials(credentials, token);
}
const client = new grpc.Client(options.address, credentials);
const stream = client.makeBidiStreamRequest(method, (b) => b, (b) => b);
stream.on('data', (response) => say({ received: response.length }));
stream.on('error', (error) => {
  say({ ended: error.code, details: error.details });
  process.exit();
});
stream.write(Buffer.from(options.request, 'hex'));
